// Norms, RoPE, GLU, embedding and element-wise ops of every fast table: near the plain reference, the same bits whatever the batch, and
// fused forms equal to compositions of plain ones. Build: link with kernels/cpu/{fast,reference}/*.o and dequantize.o.
#include "../../kernels/cpu/dequantize.h"
#include "../../kernels/cpu/quantize.h"
#include "ops_harness.h"

using namespace harness;

namespace {

const int LENGTHS[] = {1, 3, 7, 16, 31, 64, 97, 256, 1000, 2560, 16384 + 13};

std::vector<float> vector_of(int n) {
  std::vector<float> w(static_cast<size_t>(n));
  for (float& x : w) x = 1.0f + normal(0.3f);
  return w;
}

// Runs an op on all rows at once and on one row at a time; `run(ops, dst, first row, step)`. Checks nearness to the reference too.
template <class F> void by_rows(const NamedTable& table, Buffer& prototype, float tolerance, const std::string& what, F&& run) {
  Step step(prototype.d0, 0, 4, 1);
  for (int r = 0; r < prototype.d0; r++) step.position[size_t(r)] = pick(0, 100000);
  Buffer all = prototype, alone = prototype, reference = prototype;
  run(*table.ops, all, 0, step.ref, 2);
  run(reference_ops, reference, 0, step.ref, 1);
  for (int r = 0; r < prototype.d0; r++) run(*table.ops, alone, r, step.slice(r, 1), 1);
  check_near(all, reference, tolerance, std::string(table.name) + " " + what);
  check_same(all, alone, std::string(table.name) + " " + what + " row by row");
}

void norms(const NamedTable& t) {
  for (int n : LENGTHS) {
    for (int d1 : {1, 3}) {
      int rows = n > 4000 ? 2 : 5;
      std::string shape = std::to_string(rows) + "x" + std::to_string(d1) + "x" + std::to_string(n);
      Buffer x(1, rows, d1, n), residual(1, rows, d1, n), b(1, rows, d1, n), dst(1, rows, d1, n);
      x.random(3.0f);
      b.random(0.5f);
      residual.random();
      std::vector<float> w = vector_of(n), w1 = vector_of(n), w2 = vector_of(n), w3 = vector_of(n);
      for (const float* weight : {(const float*)nullptr, (const float*)w.data()}) {
        by_rows(t, dst, 1e-6f, "rms_norm " + shape, [&](const OpTable& ops, Buffer& out, int row, const StepRef& s, int threads) {
          run_op(ops.rms_norm, RmsNormArgs{out.tensor(row), x.tensor(row), weight, 1e-6f, 0.25f}, s, threads);
        });
      }
      by_rows(t, dst, 1e-6f, "norm_add " + shape, [&](const OpTable& ops, Buffer& out, int row, const StepRef& s, int threads) {
        run_op(ops.norm_add, NormAddArgs{out.tensor(row), residual.tensor(row), x.tensor(row), w.data(), 1e-6f, 0.7f}, s, threads);
      });
      by_rows(t, dst, 2e-6f, "ple_combine " + shape, [&](const OpTable& ops, Buffer& out, int row, const StepRef& s, int threads) {
        run_op(ops.ple_combine, PleCombineArgs{out.tensor(row), x.tensor(row), b.tensor(row), w.data(), 1e-6f, 0.0197f, 0.7071f}, s, threads);
      });

      // Fused against plain, and against the reference.
      Step step(rows, 0, 1, 1);
      const std::string name = std::string(t.name) + " " + shape + " ";
      Buffer sum = dst, y0 = dst, y1 = dst, y2 = dst, sum_p = dst, y0_p = dst, y1_p = dst, y2_p = dst, sum_r = dst, y0_r = dst;
      run_op(t.ops->add_norm, AddNormArgs{sum.tensor(), y0.tensor(), residual.tensor(), x.tensor(), w.data(), 1e-5f}, step.ref);
      run_op(t.ops->add, AddArgs{sum_p.tensor(), residual.tensor(), x.tensor()}, step.ref);
      run_op(t.ops->rms_norm, RmsNormArgs{y0_p.tensor(), sum_p.tensor(), w.data(), 1e-5f, 1.0f}, step.ref);
      check_same(sum, sum_p, name + "add_norm sum");
      check_same(y0, y0_p, name + "add_norm y");

      run_op(t.ops->norm_add_norms, NormAddNormsArgs{sum.tensor(), y0.tensor(), y1.tensor(), y2.tensor(), residual.tensor(), x.tensor(), w.data(), w1.data(), w2.data(), nullptr, 0.3f, 1e-6f, 0.9f}, step.ref);
      run_op(t.ops->norm_add, NormAddArgs{sum_p.tensor(), residual.tensor(), x.tensor(), w.data(), 1e-6f, 0.9f}, step.ref);
      run_op(t.ops->rms_norm, RmsNormArgs{y0_p.tensor(), sum_p.tensor(), w1.data(), 1e-6f, 1.0f}, step.ref);
      run_op(t.ops->rms_norm, RmsNormArgs{y1_p.tensor(), sum_p.tensor(), w2.data(), 1e-6f, 0.3f}, step.ref);
      run_op(t.ops->rms_norm, RmsNormArgs{y2_p.tensor(), sum_p.tensor(), nullptr, 1e-6f, 1.0f}, step.ref);
      check_same(sum, sum_p, name + "norm_add_norms sum");
      check_same(y0, y0_p, name + "norm_add_norms y0");
      check_same(y1, y1_p, name + "norm_add_norms y1");
      check_same(y2, y2_p, name + "norm_add_norms y2");

      run_op(t.ops->moe_merge, MoeMergeArgs{sum.tensor(), y0.tensor(), residual.tensor(), x.tensor(), b.tensor(), w.data(), w1.data(), w2.data(), w3.data(), 1e-6f, 0.9f}, step.ref);
      run_op(t.ops->rms_norm, RmsNormArgs{y1_p.tensor(), x.tensor(), w.data(), 1e-6f, 1.0f}, step.ref);
      run_op(t.ops->rms_norm, RmsNormArgs{y2_p.tensor(), b.tensor(), w1.data(), 1e-6f, 1.0f}, step.ref);
      run_op(t.ops->add, AddArgs{y1_p.tensor(), y1_p.tensor(), y2_p.tensor()}, step.ref);
      run_op(t.ops->norm_add, NormAddArgs{sum_p.tensor(), residual.tensor(), y1_p.tensor(), w2.data(), 1e-6f, 0.9f}, step.ref);
      run_op(t.ops->rms_norm, RmsNormArgs{y0_p.tensor(), sum_p.tensor(), w3.data(), 1e-6f, 1.0f}, step.ref);
      run_op(reference_ops.moe_merge, MoeMergeArgs{sum_r.tensor(), y0_r.tensor(), residual.tensor(), x.tensor(), b.tensor(), w.data(), w1.data(), w2.data(), w3.data(), 1e-6f, 0.9f}, step.ref);
      check_same(sum, sum_p, name + "moe_merge sum");
      check_same(y0, y0_p, name + "moe_merge y");
      check_near(sum, sum_r, 2e-6f, name + "moe_merge sum");
      check_near(y0, y0_r, 4e-6f, name + "moe_merge y");
      // In place on the residual.
      Buffer in_place = residual;
      run_op(t.ops->moe_merge, MoeMergeArgs{in_place.tensor(), Tensor{}, in_place.tensor(), x.tensor(), b.tensor(), w.data(), w1.data(), w2.data(), nullptr, 1e-6f, 0.9f}, step.ref);
      check_same(in_place, sum, name + "moe_merge in place");
      in_place = x;
      run_op(t.ops->norm_add, NormAddArgs{in_place.tensor(), residual.tensor(), in_place.tensor(), w.data(), 1e-6f, 0.9f}, step.ref);
      run_op(t.ops->norm_add, NormAddArgs{sum.tensor(), residual.tensor(), x.tensor(), w.data(), 1e-6f, 0.9f}, step.ref);
      check_same(in_place, sum, name + "norm_add in place");
    }
  }
}

void element_ops(const NamedTable& t) {
  for (int n : LENGTHS) {
    std::string shape = std::to_string(n);
    Buffer x(1, 4, 1, n), y(1, 4, 1, n), dst(1, 4, 1, n), packed(1, 4, 1, 2 * n);
    x.random(4.0f);
    y.random();
    packed.random(3.0f);
    if (n > 8) {
      const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-38f, 3e38f, -100.0f};
      for (int i = 0; i < 8; i++) x.row(0)[i] = odd[i];
    }
    auto with = [&](float tolerance, const std::string& what, auto&& args_of, auto member) {
      by_rows(t, dst, tolerance, what + shape, [&](const OpTable& ops, Buffer& out, int row, const StepRef& s, int threads) {
        run_op(ops.*member, args_of(out, row), s, threads);
      });
    };
    with(0, "add ", [&](Buffer& o, int r) { return AddArgs{o.tensor(r), x.tensor(r), y.tensor(r)}; }, &OpTable::add);
    with(0, "scale ", [&](Buffer& o, int r) { return ScaleArgs{o.tensor(r), x.tensor(r), 0.37f}; }, &OpTable::scale);
    with(3e-7f, "softcap ", [&](Buffer& o, int r) { return ScaleArgs{o.tensor(r), x.tensor(r), 30.0f}; }, &OpTable::softcap);
    with(0, "copy ", [&](Buffer& o, int r) { return CopyArgs{o.tensor(r), x.tensor(r)}; }, &OpTable::copy);
    for (int activation : {BAO_ACTIVATION_GELU, BAO_ACTIVATION_SILU}) {
      with(1e-6f, "glu ", [&](Buffer& o, int r) { return GluArgs{o.tensor(r), x.tensor(r), y.tensor(r), activation}; }, &OpTable::glu);
      with(1e-6f, "glu packed ", [&](Buffer& o, int r) { return GluArgs{o.tensor(r), packed.tensor(r), Tensor{}, activation}; }, &OpTable::glu);
    }
  }
}

// Softcap with cap 1 is tanh, and silu shows exp: relative errors over the whole range.
void functions(const NamedTable& t) {
  const int n = 200000;
  Buffer x(1, 1, 1, n), dst(1, 1, 1, n), ones(1, 1, 1, n);
  for (int i = 0; i < n; i++) {
    x.row(0)[i] = std::exp2(-40.0f + 47.0f * float(i) / n) * (i % 2 ? 1.0f : -1.0f);
    ones.row(0)[i] = 1.0f;
  }
  Step step(1, 0, 1, 1);
  double worst = 0;
  run_op(t.ops->softcap, ScaleArgs{dst.tensor(), x.tensor(), 1.0f}, step.ref);
  for (int i = 0; i < n; i++) worst = std::fmax(worst, std::fabs(dst.row(0)[i] / std::tanh(double(x.row(0)[i])) - 1));
  check(worst < 5e-7, std::string(t.name) + " tanh, relative error " + std::to_string(worst * 1e7) + "e-7");
  worst = 0;
  run_op(t.ops->glu, GluArgs{dst.tensor(), x.tensor(), ones.tensor(), BAO_ACTIVATION_SILU}, step.ref);
  for (int i = 0; i < n; i++) {
    double v = x.row(0)[i], e = v / (1 + std::exp(-v));
    if (std::fabs(e) > 1.2e-36) worst = std::fmax(worst, std::fabs(dst.row(0)[i] / e - 1));
  }
  check(worst < 1e-6, std::string(t.name) + " silu, relative error " + std::to_string(worst * 1e7) + "e-7");
}

void row_choices(const NamedTable& t) {
  const int n = 1003;
  Step step(9, 3, 4, 1);
  step.output = {1, 4, 8};
  step.ref.output_row = step.output.data();
  for (int r = 0; r < 9; r++) {
    step.sequence[size_t(r)] = r < 2 ? 3 : r < 7 ? 0 : 1;
    step.position[size_t(r)] = r < 2 ? 5 + r : r < 7 ? r - 2 : 70 + r;
  }
  Buffer x(1, 9, 1, n), out(2, 3, 1, n), out_r = out, pooled(0, 4, 1, n), pooled_r = pooled;
  x.random();
  run_op(t.ops->gather_rows, CopyArgs{out.tensor(), x.tensor()}, step.ref);
  run_op(reference_ops.gather_rows, CopyArgs{out_r.tensor(), x.tensor()}, step.ref);
  check_same(out, out_r, std::string(t.name) + " gather_rows");
  pooled.random();
  pooled_r = pooled;
  run_op(t.ops->pool_rows, CopyArgs{pooled.tensor(), x.tensor()}, step.ref);
  run_op(reference_ops.pool_rows, CopyArgs{pooled_r.tensor(), x.tensor()}, step.ref);
  check_same(pooled, pooled_r, std::string(t.name) + " pool_rows");

  for (int columns : {1, 5, 1000, 16384, 40001}) {
    Buffer v(1, 6, 1, columns), id(1, 6, 1, 1), id_r = id;
    v.random();
    Step six(6, 0, 1, 1);
    for (int i = 0; i < columns; i++) {
      v.row(1)[i] = NAN;
      v.row(2)[i] = i < columns / 2 ? NAN : -INFINITY;
      v.row(3)[i] = 1.0f;
      v.row(4)[i] = float(pick(0, 3));
    }
    v.row(5)[columns - 1] = INFINITY;
    if (columns > 1) v.row(5)[columns / 2] = NAN;
    run_op(t.ops->argmax, CopyArgs{id.tensor(), v.tensor()}, six.ref);
    run_op(reference_ops.argmax, CopyArgs{id_r.tensor(), v.tensor()}, six.ref);
    check_same(id, id_r, std::string(t.name) + " argmax " + std::to_string(columns));
  }
}

void ropes(const NamedTable& t) {
  for (int half : {1, 4, 13, 32, 64, 256}) {
    for (int head_dim : {2 * half, 2 * half + 6}) {
      std::vector<float> factors = vector_of(half);
      Buffer table(1, 7, 2, half), x(1, 7, 3, head_dim), dst(1, 7, 3, head_dim);
      x.random();
      std::string shape = std::to_string(half) + "/" + std::to_string(head_dim);
      by_rows(t, table, 0, "rope_table " + shape, [&](const OpTable& ops, Buffer& out, int row, const StepRef& s, int threads) {
        run_op(ops.rope_table, RopeTableArgs{out.tensor(row), head_dim > 2 * half ? factors.data() : nullptr, 2 * half, 1e6f, 0.125f}, s, threads);
      });
      Step step(7, 0, 1, 1);
      for (int r = 0; r < 7; r++) step.position[size_t(r)] = r * 1000;
      run_op(reference_ops.rope_table, RopeTableArgs{table.tensor(), nullptr, 2 * half, 1e4f, 1.0f}, step.ref);
      for (int mode : {BAO_ROPE_NEOX, BAO_ROPE_INTERLEAVED}) {
        by_rows(t, dst, 3e-7f, "rope " + shape, [&](const OpTable& ops, Buffer& out, int row, const StepRef& s, int threads) {
          run_op(ops.rope, RopeArgs{out.tensor(row), x.tensor(row), table.tensor(row), mode}, s, threads);
        });
        Buffer in_place = x, apart = dst;
        run_op(t.ops->rope, RopeArgs{in_place.tensor(), in_place.tensor(), table.tensor(), mode}, step.ref);
        run_op(t.ops->rope, RopeArgs{apart.tensor(), x.tensor(), table.tensor(), mode}, step.ref);
        check_same(in_place, apart, std::string(t.name) + " rope in place " + shape);
      }
    }
  }
}

void embeds(const NamedTable& t) {
  for (int dtype : {BAO_F32, BAO_F16, BAO_BF16, BAO_Q4_0, BAO_Q4_1, BAO_Q5_0, BAO_Q5_1, BAO_Q8_0, BAO_Q2_K, BAO_Q3_K, BAO_Q4_K, BAO_Q5_K, BAO_Q6_K, BAO_IQ4_NL, BAO_IQ4_XS, BAO_MXFP4, BAO_NVFP4}) {
    for (int columns : {256, 2304, 1024}) {
      int64_t bytes = row_bytes(dtype, columns);
      std::vector<uint8_t> weight(size_t(bytes) * 5);
      std::vector<float> row(static_cast<size_t>(columns));
      for (int r = 0; r < 5; r++) {
        for (float& v : row) v = normal();
        check(quantize_row(dtype, row.data(), weight.data() + r * bytes, columns), "quantize_row");
      }
      float factor = 0.5f;
      WeightRef w{weight.data(), dtype, 5, columns, 1, bytes, bytes * 5, columns == 1024 ? &factor : nullptr, 1};
      Step step(4, 0, 1, 1);
      step.id = {4, 0, 7, 2};
      step.ref.row_id = step.id.data();
      Buffer dst(1, 4, 1, columns), expected = dst;
      run_op(t.ops->embed, EmbedArgs{dst.tensor(), w, 31.5f}, step.ref);
      run_op(reference_ops.embed, EmbedArgs{expected.tensor(), w, 31.5f}, step.ref);
      check_same(dst, expected, std::string(t.name) + " embed " + dtype_name(dtype) + " " + std::to_string(columns));
    }
  }
}

void experts(const NamedTable& t) {
  for (int count : {1, 7, 32, 128, 1024}) {
    for (int k : {1, 2, 8}) {
      if (k > count) continue;
      for (int renormalise : {0, 1}) {
        Buffer logits(1, 20, 1, count), ids(1, 20, 1, k), weights(1, 20, 1, k), ids_r = ids, weights_r = weights;
        logits.random(2.0f);
        for (int i = 0; i < count; i++) {
          logits.row(1)[i] = 0.5f;
          if (i % 2) logits.row(2)[i] = -INFINITY;
          if (i % 3 == 0) logits.row(3)[i] = 3.0f;
        }
        Step step(20, 0, 1, 1);
        run_op(t.ops->topk_softmax, TopkSoftmaxArgs{ids.tensor(), weights.tensor(), logits.tensor(), renormalise}, step.ref);
        run_op(reference_ops.topk_softmax, TopkSoftmaxArgs{ids_r.tensor(), weights_r.tensor(), logits.tensor(), renormalise}, step.ref);
        std::string what = std::string(t.name) + " topk_softmax " + std::to_string(count) + " " + std::to_string(k);
        check_same(ids, ids_r, what);
        check_near(weights, weights_r, 1e-6f, what);
      }
    }
  }
  Buffer x(1, 3, 8, 777), weights(1, 3, 1, 8), dst(1, 3, 1, 777);
  x.random();
  weights.random();
  by_rows(t, dst, 1e-6f, "moe_sum", [&](const OpTable& ops, Buffer& out, int row, const StepRef& s, int threads) {
    run_op(ops.moe_sum, MoeSumArgs{out.tensor(row), x.tensor(row), weights.tensor(row)}, s, threads);
  });
}

}  // namespace

int main() {
  for (const NamedTable& t : tables()) {
    norms(t);
    element_ops(t);
    functions(t);
    row_choices(t);
    ropes(t);
    embeds(t);
    experts(t);
  }
  return report("vector");
}
