// Every fast matmul against a naive double loop over the scalar dequantisers: all weight types, both precisions, all instruction sets of this
// machine; and the promise that the bits of a (row, output) depend on nothing but its own row and weights. Exit 1 on the first surprise.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../../kernels/bao.h"
#include "../../kernels/common/dequant.h"
#include "../../kernels/cpu/dequantize.h"
#include "../../kernels/cpu/features.h"
#include "../../kernels/cpu/ops.h"

using namespace bao;

namespace {

std::mt19937_64 rng(7);
int failures = 0, checks = 0;

float uniform(float a, float b) { return std::uniform_real_distribution<float>(a, b)(rng); }

void expect(bool good, const std::string& what) {
  checks++;
  if (good) return;
  if (failures++ < 20) std::printf("FAIL %s\n", what.c_str());
}

// ---- a recorder and a runner: pieces in a random order, scratch filled with NaN patterns

struct Program : Builder {
  struct Stage {
    std::vector<char> args;
    PiecesFn pieces;
    RunFn run;
  };
  std::vector<Stage> stages;
  int64_t bytes = 0;
  void add(const void* args, int64_t n, PiecesFn pieces, RunFn run) override {
    stages.push_back({std::vector<char>(static_cast<const char*>(args), static_cast<const char*>(args) + n), pieces, run});
  }
  int64_t reserve_scratch(int64_t n) override {
    int64_t at = bytes;
    bytes += (n + 127) / 128 * 128;
    return at;
  }
  void run(const StepRef& step, int threads) {
    std::unique_ptr<char, void (*)(void*)> scratch(static_cast<char*>(std::aligned_alloc(128, size_t(bytes + 128))), std::free);
    std::unique_ptr<char, void (*)(void*)> worker(static_cast<char*>(std::aligned_alloc(128, 1 << 20)), std::free);
    std::memset(scratch.get(), 0xFF, size_t(bytes + 128));
    std::memset(worker.get(), 0xFF, 1 << 20);
    Run r = {&step, scratch.get(), worker.get(), 1 << 20, threads};
    for (Stage& s : stages) {
      std::vector<int32_t> order(size_t(s.pieces(s.args.data(), r)));
      for (size_t i = 0; i < order.size(); i++) order[i] = int32_t(i);
      std::shuffle(order.begin(), order.end(), rng);
      for (int32_t piece : order) s.run(s.args.data(), r, piece);
    }
    for (int i = 0; i < 128; i++) expect(scratch.get()[bytes + i] == char(0xFF), "scratch beyond what was reserved was written");
  }
};

// Rows with a gap after each: a write outside a row is seen.
struct Matrix {
  std::vector<float> data;
  int32_t rows, d1, d2;
  int64_t stride;
  Matrix(int32_t r, int32_t a, int32_t b) : data(size_t(r) * (size_t(a) * b + 8), -77.0f), rows(r), d1(a), d2(b), stride((int64_t(a) * b + 8) * 4) {}
  Tensor tensor(int32_t dtype = BAO_F32) { return {reinterpret_cast<char*>(data.data()), stride, BAO_ROWS_STEP, dtype, rows, d1, d2}; }
  float* row(int64_t r) { return data.data() + r * stride / 4; }
  int64_t columns() const { return int64_t(d1) * d2; }
  void random() {
    for (int32_t r = 0; r < rows; r++) for (int64_t i = 0; i < columns(); i++) row(r)[i] = uniform(-1, 1) * (i % 37 == 5 ? 6.0f : 1.0f);
  }
  void check_gaps(const std::string& what) {
    for (int32_t r = 0; r < rows; r++) for (int i = 0; i < 8; i++) expect(row(r)[columns() + i] == -77.0f, what + ": wrote beyond a row");
  }
};

struct Weights {
  std::vector<uint8_t> data;
  WeightRef ref{};
  std::vector<float> f32, factors;
  Weights(int dtype, int32_t rows, int32_t columns, int32_t experts) {
    int64_t bytes = row_bytes(dtype, columns);
    data.resize(size_t(bytes) * size_t(rows) * size_t(experts));
    for (auto& b : data) b = uint8_t(rng());
    fix(dtype);
    ref = {data.data(), dtype, rows, columns, experts, bytes, bytes * rows, nullptr, 0};
    f32.resize(size_t(rows) * size_t(columns) * size_t(experts));
    for (int64_t r = 0; r < int64_t(rows) * experts; r++) dequantize_row(dtype, data.data() + r * bytes, f32.data() + r * columns, columns);
  }
  void scale(int count) {
    for (int i = 0; i < count; i++) factors.push_back(uniform(0.5f, 2.0f));
    ref.factors = factors.data();
    ref.factor_count = count;
  }
  const float* row(int64_t expert, int64_t r) const { return f32.data() + (expert * ref.rows + r) * ref.columns; }

 private:
  // Random bytes, then scales of a size that models have.
  template <class B, class F> void each(F f) {
    for (size_t at = 0; at + sizeof(B) <= data.size(); at += sizeof(B)) {
      B b;
      std::memcpy(&b, &data[at], sizeof b);
      f(b);
      std::memcpy(&data[at], &b, sizeof b);
    }
  }
  static uint16_t half() { return f32_to_f16(uniform(-0.02f, 0.02f)); }
  void fix(int dtype) {
    switch (dtype) {
      case BAO_F32: each<float>([](float& b) { b = uniform(-1, 1); }); break;
      case BAO_F16: each<uint16_t>([](uint16_t& b) { b = f32_to_f16(uniform(-1, 1)); }); break;
      case BAO_BF16: each<uint16_t>([](uint16_t& b) { b = f32_to_bf16(uniform(-1, 1)); }); break;
      case BAO_Q4_0: each<BlockQ4_0>([](auto& b) { b.d = half(); }); break;
      case BAO_Q4_1: each<BlockQ4_1>([](auto& b) { b.d = half(), b.m = half(); }); break;
      case BAO_Q5_0: each<BlockQ5_0>([](auto& b) { b.d = half(); }); break;
      case BAO_Q5_1: each<BlockQ5_1>([](auto& b) { b.d = half(), b.m = half(); }); break;
      case BAO_Q8_0: each<BlockQ8_0>([](auto& b) { b.d = half(); }); break;
      case BAO_Q2_K: each<BlockQ2_K>([](auto& b) { b.d = half(), b.dmin = half(); }); break;
      case BAO_Q3_K: each<BlockQ3_K>([](auto& b) { b.d = half(); }); break;
      case BAO_Q4_K: each<BlockQ4_K>([](auto& b) { b.d = half(), b.dmin = half(); }); break;
      case BAO_Q5_K: each<BlockQ5_K>([](auto& b) { b.d = half(), b.dmin = half(); }); break;
      case BAO_Q6_K: each<BlockQ6_K>([](auto& b) { b.d = half(); }); break;
      case BAO_IQ4_NL: each<BlockIQ4_NL>([](auto& b) { b.d = half(); }); break;
      case BAO_IQ4_XS: each<BlockIQ4_XS>([](auto& b) { b.d = half(); }); break;
      case BAO_MXFP4: each<BlockMXFP4>([](auto& b) { b.e = uint8_t(rng() % 50 == 0 ? rng() % 3 : 118 + rng() % 6); }); break;
      default: break;  // NVFP4: any scale byte is a sane one
    }
  }
};

constexpr int TYPES[] = {BAO_F32, BAO_F16, BAO_BF16, BAO_Q4_0, BAO_Q4_1, BAO_Q5_0, BAO_Q5_1, BAO_Q8_0, BAO_Q2_K,
                         BAO_Q3_K, BAO_Q4_K, BAO_Q5_K, BAO_Q6_K, BAO_IQ4_NL, BAO_IQ4_XS, BAO_MXFP4, BAO_NVFP4};
bool plain(int dtype) { return block_elements(dtype) == 1; }

struct Isa {
  const char* name;
  const OpTable* ops;
};
std::vector<Isa> isas() {
  std::vector<Isa> list = {{"base", fast_ops_base()}};
#if defined(__x86_64__)
  if (has_isa(BAO_ISA_AVX2)) list.push_back({"avx2", fast_ops_avx2()});
  if (has_isa(BAO_ISA_AVX512)) list.push_back({"avx512", fast_ops_avx512()});
#elif defined(__aarch64__)
  if (has_isa(BAO_ISA_NEON)) list.push_back({"neon", fast_ops_neon()});
#endif
  return list;
}

StepRef step_of(int rows) {
  StepRef s{};
  s.rows = rows;
  return s;
}

// Activations as the precision rounds them.
std::vector<float> rounded(const float* x, int64_t n, bool fast) {
  std::vector<float> out(x, x + n);
  if (!fast) return out;
  for (int64_t i = 0; i < n; i += 32) {
    float top = 0;
    for (int j = 0; j < 32; j++) top = std::fmax(top, std::fabs(x[i + j]));
    float d = top / 127.0f, id = 127.0f / top;
    for (int j = 0; j < 32; j++) out[size_t(i + j)] = top == 0 ? 0 : d * std::nearbyintf(x[i + j] * id);
  }
  return out;
}
// value and the norms' product
double naive(const float* x, const float* w, int64_t n, double* size) {
  double sum = 0, xx = 0, ww = 0;
  for (int64_t i = 0; i < n; i++) sum += double(x[i]) * w[i], xx += double(x[i]) * x[i], ww += double(w[i]) * w[i];
  *size = std::sqrt(xx * ww);
  return sum;
}

Program matmul_program(const OpTable& ops, Matrix& dst, Matrix& x, const Weights& w, int fast) {
  Program p;
  ops.matmul(p, {dst.tensor(), x.tensor(), w.ref, fast});
  return p;
}

void test_matmul(const Isa& isa, int dtype, int fast, int32_t outputs, int32_t columns, bool thorough) {
  std::string what = std::string(isa.name) + " " + (dtype_name(dtype) ? dtype_name(dtype) : "?") + (fast ? " fast " : " exact ") + std::to_string(outputs) + "x" + std::to_string(columns);
  constexpr int32_t most = 130;
  Weights w(dtype, outputs, columns, 1);
  if (outputs % 2) w.scale(1);
  Matrix x(most, 1, columns), all(most, 1, outputs);
  x.random();
  matmul_program(*isa.ops, all, x, w, fast).run(step_of(most), 2);
  all.check_gaps(what);
  for (int32_t r = 0; r < most; r += thorough ? 1 : 43) {
    std::vector<float> xr = rounded(x.row(r), columns, fast && !plain(dtype));
    for (int32_t o = 0; o < outputs; o++) {
      double size, factor = w.ref.factors ? w.factors[0] : 1.0, want = naive(xr.data(), w.row(0, o), columns, &size) * factor;
      if (!(std::fabs(all.row(r)[o] - want) <= 2e-6 * size * factor + 1e-30)) {
        expect(false, what + " row " + std::to_string(r) + " output " + std::to_string(o) + ": " + std::to_string(all.row(r)[o]) + " expected " + std::to_string(want));
      }
      checks++;
    }
  }
  // The same rows in other company, at other places, cut differently.
  for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33}) {
    Matrix some(rows, 1, columns), out(rows, 1, outputs);
    int first = int(rng() % uint64_t(most - rows + 1));
    for (int r = 0; r < rows; r++) std::memcpy(some.row(r), x.row(first + r), size_t(columns) * 4);
    matmul_program(*isa.ops, out, some, w, fast).run(step_of(rows), 1 + int(rng() % 9));
    for (int r = 0; r < rows; r++) expect(!std::memcmp(out.row(r), all.row(first + r), size_t(outputs) * 4), what + ": bits differ at " + std::to_string(rows) + " rows");
    out.check_gaps(what);
  }
}

// NaN and infinities reach every output of their row and no other row.
void test_not_finite(const Isa& isa, int dtype, int fast) {
  Weights w(dtype, 19, 512, 1);
  Matrix x(9, 1, 512), dst(9, 1, 19), clean(9, 1, 19);
  x.random();
  matmul_program(*isa.ops, clean, x, w, fast).run(step_of(9), 2);
  x.row(3)[77] = std::nanf("");
  x.row(5)[300] = INFINITY;
  x.row(7)[5] = -INFINITY;
  matmul_program(*isa.ops, dst, x, w, fast).run(step_of(9), 2);
  for (int r = 0; r < 9; r++) {
    bool bad = r == 3 || r == 5 || r == 7;
    for (int o = 0; o < 19; o++) {
      if (!bad) expect(!std::memcmp(&dst.row(r)[o], &clean.row(r)[o], 4), "a clean row changed beside a NaN");
      else if (fast || r == 3) expect(std::isnan(dst.row(r)[o]), "NaN was lost");
    }
  }
  // Zeros, subnormals, huge values: finite in, no NaN out.
  for (int i = 0; i < 512; i++) x.row(0)[i] = 0, x.row(1)[i] = 1e-42f, x.row(2)[i] = i % 2 ? 3e38f : -3e38f;
  matmul_program(*isa.ops, dst, x, w, fast).run(step_of(9), 2);
  for (int o = 0; o < 19; o++) {
    expect(dst.row(0)[o] == 0, "zeros in, zeros out");
    expect(std::fabs(dst.row(1)[o]) < 1e-30, "subnormal activations");
  }
}

void test_group_and_glu(const Isa& isa, int fast) {
  for (int rows : {1, 3, 9, 130}) {
    Weights a(BAO_Q4_K, 40, 512, 1), b(BAO_BF16, 7, 512, 1), c(BAO_Q6_K, 33, 512, 1);
    Matrix x(rows, 1, 512), ya(rows, 1, 40), yb(rows, 1, 7), yc(rows, 1, 33), za(rows, 1, 40), zb(rows, 1, 7), zc(rows, 1, 33);
    x.random();
    Program g;
    MatmulGroupArgs args = {{ya.tensor(), yb.tensor(), yc.tensor()}, x.tensor(), {a.ref, b.ref, c.ref}, fast};
    isa.ops->matmul_group(g, args);
    g.run(step_of(rows), 3);
    matmul_program(*isa.ops, za, x, a, fast).run(step_of(rows), 2);
    matmul_program(*isa.ops, zb, x, b, fast).run(step_of(rows), 2);
    matmul_program(*isa.ops, zc, x, c, fast).run(step_of(rows), 2);
    expect(ya.data == za.data && yb.data == zb.data && yc.data == zc.data, "matmul_group is not its three matmuls");

    for (int activation : {BAO_ACTIVATION_GELU, BAO_ACTIVATION_SILU}) {
      for (bool packed : {false, true}) {
        const int32_t n = 45;
        Weights gate(BAO_Q4_K, packed ? 2 * n : n, 512, 1), up(BAO_Q5_K, n, 512, 1);
        Matrix fused(rows, 1, n), pair(rows, 1, 2 * n), yg(rows, 1, n), yu(rows, 1, n), plain_glu(rows, 1, n);
        Program p, q;
        isa.ops->matmul_glu(p, {fused.tensor(), x.tensor(), gate.ref, packed ? WeightRef{} : up.ref, activation, fast});
        p.run(step_of(rows), 4);
        if (packed) {
          matmul_program(*isa.ops, pair, x, gate, fast).run(step_of(rows), 2);
          isa.ops->glu(q, {plain_glu.tensor(), pair.tensor(), Tensor{}, activation});
        } else {
          matmul_program(*isa.ops, yg, x, gate, fast).run(step_of(rows), 2);
          matmul_program(*isa.ops, yu, x, up, fast).run(step_of(rows), 2);
          isa.ops->glu(q, {plain_glu.tensor(), yg.tensor(), yu.tensor(), activation});
        }
        q.run(step_of(rows), 2);
        expect(fused.data == plain_glu.data, "matmul_glu is not glu of its matmuls");
      }
    }
  }
}

void test_moe(const Isa& isa, int fast, int gate_type, int down_type) {
  const int32_t experts = 11, k = 3, n = 48, f = 64 + 13, columns = 256;
  Weights gate(gate_type, f, columns, experts), up(gate_type, f, columns, experts), router(BAO_F32, experts, columns, 1);
  Weights down(down_type, n + 1, columns, experts);
  down.scale(experts);
  gate.scale(1);
  for (int rows : {1, 2, 4, 5, 9, 130, 300}) {
    Matrix x(rows, 1, columns), xs(rows, k, columns), ids(rows, 1, k), weights(rows, 1, k), logits(rows, 1, experts), ids2(rows, 1, k), weights2(rows, 1, k);
    x.random();
    xs.random();
    Program route, logit, top;
    isa.ops->router(route, {ids.tensor(BAO_I32), weights.tensor(), x.tensor(), router.ref, 1, fast});
    route.run(step_of(rows), 2);
    matmul_program(*isa.ops, logits, x, router, fast).run(step_of(rows), 2);
    isa.ops->topk_softmax(top, {ids2.tensor(BAO_I32), weights2.tensor(), logits.tensor(), 1});
    top.run(step_of(rows), 2);
    expect(!std::memcmp(ids.data.data(), ids2.data.data(), ids.data.size() * 4) && weights.data == weights2.data, "router is not topk_softmax of its matmul");
    auto id = [&](int r, int s) -> int32_t& { return reinterpret_cast<int32_t*>(ids.row(r))[s]; };
    if (rows > 3) id(1, 0) = -1, id(2, 2) = experts, id(3, 1) = 0x7FFFFFFF;

    for (bool each : {false, true}) {
      Matrix y(rows, k, f), z(rows, k, f), yu(rows, k, f), d(rows, k, n + 1), sum(rows, 1, n + 1), sum2(rows, 1, n + 1), composed(rows, k, f);
      Matrix& in = each ? xs : x;
      Program p, u, g, c, s1, s2, s3;
      isa.ops->moe_matmul(p, {y.tensor(), in.tensor(), ids.tensor(BAO_I32), gate.ref, fast});
      p.run(step_of(rows), 3);
      y.check_gaps("moe_matmul");
      // Against plain matmuls of the expert's weight, bit for bit.
      for (int r = 0; r < rows; r += rows > 20 ? 17 : 1) {
        for (int s = 0; s < k; s++) {
          Matrix one(1, 1, columns), out(1, 1, f);
          std::memcpy(one.row(0), in.row(r) + (each ? s * columns : 0), columns * 4);
          bool valid = id(r, s) >= 0 && id(r, s) < experts;
          if (valid) {
            Weights* w = &gate;
            WeightRef keep = w->ref;
            w->ref.data += id(r, s) * keep.expert_bytes;
            matmul_program(*isa.ops, out, one, *w, fast).run(step_of(1), 1);
            w->ref = keep;
          } else {
            for (int i = 0; i < f; i++) out.row(0)[i] = 0;
          }
          expect(!std::memcmp(out.row(0), y.row(r) + s * f, size_t(f) * 4), "moe_matmul is not the expert's matmul");
        }
      }
      isa.ops->moe_matmul(u, {yu.tensor(), in.tensor(), ids.tensor(BAO_I32), up.ref, fast});
      u.run(step_of(rows), 3);
      isa.ops->moe_matmul_glu(g, {z.tensor(), in.tensor(), ids.tensor(BAO_I32), gate.ref, up.ref, BAO_ACTIVATION_GELU, fast});
      g.run(step_of(rows), 2);
      isa.ops->glu(c, {composed.tensor(), y.tensor(), yu.tensor(), BAO_ACTIVATION_GELU});
      c.run(step_of(rows), 2);
      expect(z.data == composed.data, "moe_matmul_glu is not glu of its matmuls");
      isa.ops->moe_matmul_sum(s1, {sum.tensor(), in.tensor(), ids.tensor(BAO_I32), weights.tensor(), down.ref, fast});
      s1.run(step_of(rows), 5);
      isa.ops->moe_matmul(s2, {d.tensor(), in.tensor(), ids.tensor(BAO_I32), down.ref, fast});
      s2.run(step_of(rows), 2);
      isa.ops->moe_sum(s3, {sum2.tensor(), d.tensor(), weights.tensor()});
      s3.run(step_of(rows), 2);
      expect(sum.data == sum2.data, "moe_matmul_sum is not moe_sum of moe_matmul");
      // And once against the naive loop, factors included.
      std::vector<float> xr = rounded(in.row(0), columns, fast && !plain(down_type));
      for (int i = 0; i <= n; i++) {
        double size, factor = down.factors[size_t(id(0, 0))], want = naive(xr.data(), down.row(id(0, 0), i), columns, &size) * factor;
        expect(std::fabs(d.row(0)[i] - want) <= 2e-6 * size * factor, "moe_matmul against the naive loop");
      }
    }
  }
}

}  // namespace

int main(int argc, char**) {
  bool thorough = argc > 1;
  // As in ops_harness.h: for an emulated processor.
  bool brief = std::getenv("BAO_TEST_BRIEF") != nullptr;
  const std::vector<int32_t> all_columns = brief ? std::vector<int32_t>{1, 64, 160, 768} : std::vector<int32_t>{1, 7, 32, 64, 100, 160, 256, 512, 704, 2816};
  const std::vector<int32_t> all_outputs = brief ? std::vector<int32_t>{3, 17, 53} : std::vector<int32_t>{1, 3, 7, 16, 17, 31, 53, 64};
  for (const Isa& isa : isas()) {
    for (int dtype : TYPES) {
      int unit = block_elements(dtype);
      for (int fast : {0, 1}) {
        for (int32_t columns : all_columns) {
          if (columns % unit) continue;
          for (int32_t outputs : all_outputs) test_matmul(isa, dtype, fast, outputs, columns, thorough);
        }
        test_not_finite(isa, dtype, fast && !plain(dtype));
      }
    }
    for (int fast : {0, 1}) {
      test_group_and_glu(isa, fast);
      test_moe(isa, fast, BAO_Q4_K, BAO_Q4_K);
      test_moe(isa, fast, BAO_Q8_0, BAO_Q5_0);
      test_moe(isa, fast, BAO_NVFP4, BAO_F16);
    }
    std::printf("%s: %d checks, %d failures\n", isa.name, checks, failures);
  }
  return failures ? 1 : 0;
}
