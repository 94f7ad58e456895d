// Small cases worked out by hand, on the plain reference and on the fast kernels: what each op means, at its edges. No arguments.
#include "harness.h"

using namespace harness;

namespace {

#define OK(call) Bench::ok(call, #call)

void norms(Bench& b) {
  // mean(3^2, 4^2) = 12.5; eps 12.5 makes the divisor 5.
  View x = b.rows(1, 2), y = b.rows(1, 2), sum = b.rows(1, 2), residual = b.rows(1, 2);
  bao_handle w = b.vector({2, 10});
  x.set({3, 4, 0, 0}), residual.set({1, 1, 7, 7});
  b.fill(2);
  b.run([&](bao_handle s) { OK(bao_rms_norm(s, y.handle, x.handle, w, 12.5f, 1)); });
  near(y.get(2), {1.2, 8, 0, 0}, "rms_norm");
  b.run([&](bao_handle s) { OK(bao_rms_norm(s, y.handle, x.handle, 0, 12.5f, 5)); });
  near(y.get(2), {3, 4, 0, 0}, "rms_norm without weight, scaled");
  b.run([&](bao_handle s) { OK(bao_norm_add(s, residual.handle, residual.handle, x.handle, w, 12.5f, 2)); });
  near(residual.get(2), {4.4, 18, 14, 14}, "norm_add in place");
  residual.set({1, 1, 0, 0}), x.set({2, 3, 0, 0});
  b.run([&](bao_handle s) { OK(bao_add_norm(s, sum.handle, y.handle, residual.handle, x.handle, w, 12.5f)); });
  near(sum.get(2), {3, 4, 0, 0}, "add_norm sum");
  near(y.get(2), {1.2, 8, 0, 0}, "add_norm");
  // Each of two heads has its own mean.
  View heads = b.rows(2, 2);
  heads.set({3, 4, 30, 40});
  b.fill(1);
  b.run([&](bao_handle s) { OK(bao_rms_norm(s, heads.handle, heads.handle, 0, 12.5f, 5)); });
  near(heads.get(1), {3, 4, 5 * 30 / std::sqrt(1262.5), 5 * 40 / std::sqrt(1262.5)}, "rms_norm per head");
  // (rms(projected * 0.5) * w + token) * 2
  View projected = b.rows(1, 2), token = b.rows(1, 2), combined = b.rows(1, 2);
  projected.set({6, 8}), token.set({1, 1});
  b.run([&](bao_handle s) { OK(bao_ple_combine(s, combined.handle, projected.handle, token.handle, w, 12.5f, 0.5f, 2)); });
  near(combined.get(1), {4.4, 18}, "ple_combine");
}

void rope(Bench& b) {
  View x = b.rows(2, 4), y = b.rows(2, 4), table = b.rows(2, 1), wide = b.rows(2, 2);
  b.fill(2);
  x.set({1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8});
  double c = std::cos(1.0), s1 = std::sin(1.0);
  b.run([&](bao_handle s) {
    OK(bao_rope_table(s, table.handle, 0, 2, 10000, 1));
    OK(bao_rope(s, y.handle, x.handle, table.handle, BAO_ROPE_NEOX));
  });
  near(table.get(2), {1, 0, c, s1}, "rope_table");
  near(std::vector<float>(y.f32(0), y.f32(0) + 8), {1, 2, 3, 4, 5, 6, 7, 8}, "rope is the identity at position 0", 0);
  near(std::vector<float>(y.f32(1), y.f32(1) + 8), {c - 2 * s1, s1 + 2 * c, 3, 4, 5 * c - 6 * s1, 5 * s1 + 6 * c, 7, 8}, "rope of 2 of 4 values");
  // Two frequencies, 1 and 1 / 100; the second is slowed to nothing by its factor.
  bao_handle factors = b.vector({1, 1e30f});
  b.run([&](bao_handle s) {
    OK(bao_rope_table(s, wide.handle, factors, 4, 10000, 1));
    OK(bao_rope(s, y.handle, x.handle, wide.handle, BAO_ROPE_NEOX));
  });
  near(std::vector<float>(y.f32(1), y.f32(1) + 4), {c - 3 * s1, 2, s1 + 3 * c, 4}, "rope pairs i with i + nRot / 2");
  b.run([&](bao_handle s) { OK(bao_rope(s, y.handle, x.handle, wide.handle, BAO_ROPE_INTERLEAVED)); });
  near(std::vector<float>(y.f32(1), y.f32(1) + 4), {c - 2 * s1, s1 + 2 * c, 3, 4}, "rope pairs 2i with 2i + 1");
  // The angle is rounded to f32 before cos and sin: 1 / 10000^(1/2) is 0.01 in f32, times 100003.
  b.fill(1, 100003);
  b.run([&](bao_handle s) { OK(bao_rope_table(s, wide.handle, 0, 4, 10000, 1)); });
  float angle = 100003.0f * (1.0f / 100.0f);
  near(wide.get(1), {std::cos(100003.0), std::cos(double(angle)), std::sin(100003.0), std::sin(double(angle))}, "rope_table far out", 1e-7);
}

void attention(Bench& b, int32_t dtype) {
  // Keys are one-hot in dimension `position % 16`, values are the position, in pages that lie in no order.
  const int32_t n = 80, dim = 32;
  bao_handle pool = Bench::must(bao_kv_pool_create(b.device, 0, 2, 1, dim, dtype, BAO_KV_PLAIN, 0, 8), "pool");
  OK(bao_kv_pool_commit(pool, 8));
  View k = b.rows(1, dim), v = b.rows(1, dim), q = b.rows(2, dim), y = b.rows(2, dim);
  b.record([&](bao_handle s) { OK(bao_kv_append(s, pool, 1, k.handle, v.handle)); });
  for (int32_t first = 0; first < n; first += 16) {
    b.fill(16, first);
    if (first == 0) b.page(0, 0, 5), b.page(0, 1, 2);
    for (int32_t r = 0; r < 16; r++) {
      for (int32_t i = 0; i < dim; i++) k.f32(r)[i] = i == (first + r) % 16, v.f32(r)[i] = float(first + r);
    }
    b.submit();
  }
  // Head 0 looks for keys like the one of position 66, head 1 for nothing in particular; at positions 66 and 67.
  auto look = [&](int32_t window, float sharp) {
    b.fill(2, 66);
    for (int32_t r = 0; r < 2; r++) {
      for (int32_t i = 0; i < dim; i++) q.f32(r)[i] = i == 66 % 16 ? sharp : 0, q.f32(r)[dim + i] = 0;
    }
    b.run([&](bao_handle s) { OK(bao_attention(s, y.handle, q.handle, pool, 1, window, 1)); });
  };
  double tolerance = dtype == BAO_Q8_0 ? 2e-2 : 1e-5;
  look(0, 100);  // positions 2, 18, 34, 50, 66
  near(y.f32(0)[0], 34, "attention to the matching keys of all pages", tolerance);
  near(y.f32(0)[dim], 33, "attention to all is their mean", tolerance);
  near(y.f32(1)[dim + dim - 1], 33.5, "a later row sees one position more", tolerance);
  look(16, 100);  // position 51 ... 66: only 66 matches
  near(y.f32(0)[0], 66, "a window of 16 ends before the key 16 back", tolerance);
  near(y.f32(0)[dim], 58.5, "mean of the window", tolerance);
  look(17, 100);  // 50 ... 66
  near(y.f32(0)[0], 58, "a window of 17 holds the key 16 back", tolerance);
  look(1, 0);
  near(y.f32(1)[dim], 67, "a window of 1 is the row itself", tolerance);
  look(3, 0);
  near(y.f32(0)[0], 65, "a window of 3 starts at the page edge", tolerance);
  bao_kv_pool_free(pool);
}

void append_fused(Bench& b) {
  const int32_t dim = 16;
  bao_handle pool = Bench::must(bao_kv_pool_create(b.device, 0, 1, 1, dim, BAO_F32, BAO_KV_PLAIN, 0, 4), "pool");
  OK(bao_kv_pool_commit(pool, 4));
  View q = b.rows(2, dim), k = b.rows(1, dim), table = b.rows(2, dim / 2), y = b.rows(2, dim), v = b.rows(1, dim), kn = b.rows(1, dim), qn = b.rows(2, dim);
  std::vector<float> w(dim);
  for (int32_t i = 0; i < dim; i++) w[i] = 1 + 0.1f * i;
  bao_handle wk = b.vector(w), wq = b.vector(w);
  auto set = [&] {
    for (int32_t i = 0; i < 3 * dim; i++) k.f32()[i] = std::sin(float(i)), v.f32()[i] = k.f32()[i];
    for (int32_t i = 0; i < 6 * dim; i++) q.f32()[i] = std::cos(float(i));
  };
  set();
  b.fill(3), b.page(0, 0, 1);
  b.run([&](bao_handle s) {
    OK(bao_rope_table(s, table.handle, 0, dim, 100, 1));
    OK(bao_head_norm_rope_append(s, q.handle, k.handle, 0, wq, wk, table.handle, BAO_ROPE_NEOX, pool, 0, 1, 1e-6f));
    OK(bao_attention(s, y.handle, q.handle, pool, 0, 0, 1));
  });
  std::vector<float> fused = y.get(3), q_fused = q.get(3);
  set();
  b.fill(3);
  b.run([&](bao_handle s) {
    OK(bao_rms_norm(s, qn.handle, q.handle, wq, 1e-6f, 1));
    OK(bao_rope(s, qn.handle, qn.handle, table.handle, BAO_ROPE_NEOX));
    OK(bao_rms_norm(s, kn.handle, k.handle, wk, 1e-6f, 1));
    OK(bao_rope(s, kn.handle, kn.handle, table.handle, BAO_ROPE_NEOX));
    OK(bao_rms_norm(s, v.handle, v.handle, 0, 1e-6f, 1));
    OK(bao_kv_append(s, pool, 0, kn.handle, v.handle));
    OK(bao_attention(s, y.handle, qn.handle, pool, 0, 0, 1));
  });
  expect(q_fused == qn.get(3), "head_norm_rope_append rotates q like the plain ops, to the bit");
  expect(fused == y.get(3), "head_norm_rope_append stores k and v like the plain ops, to the bit");
}

void matmuls(Bench& b) {
  View x = b.rows(1, 3), y = b.rows(1, 2), y4 = b.rows(1, 4), half = b.rows(1, 2);
  x.set({1, 2, 3, -1, 0, 1});
  b.fill(2);
  bao_handle w = b.matrix({1, 1, 1, 0, 1, 10}, 2, 3), u = b.matrix({1, 0, 0, 0, 0, 1}, 2, 3);
  bao_handle both = b.matrix({1, 1, 1, 0, 1, 10, 1, 0, 0, 0, 0, 1}, 4, 3);
  b.run([&](bao_handle s) { OK(bao_matmul(s, y.handle, x.handle, w)); });
  near(y.get(2), {6, 32, 0, 10}, "matmul");
  b.run([&](bao_handle s) { OK(bao_matmul_group(s, y.handle, y4.handle, half.handle, x.handle, w, both, u)); });
  near(y4.get(2), {6, 32, 1, 3, 0, 10, -1, 1}, "matmul_group, second");
  near(half.get(2), {1, 3, -1, 1}, "matmul_group, third");
  bao_handle scaled = b.matrix({1, 1, 1, 0, 1, 10}, 2, 3);
  OK(bao_weight_scale(scaled, b.vector({0.5f})));
  b.run([&](bao_handle s) { OK(bao_matmul(s, y.handle, x.handle, scaled)); });
  near(y.get(2), {3, 16, 0, 5}, "matmul with a factor");
  auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  auto gelu = [](double v) { return 0.5 * v * (1 + std::tanh(0.7978845608028654 * v * (1 + 0.044715 * v * v))); };
  b.run([&](bao_handle s) { OK(bao_matmul_glu(s, y.handle, x.handle, both, 0, BAO_ACTIVATION_SILU)); });
  near(y.get(2), {silu(6), silu(32) * 3, 0, silu(10)}, "matmul_glu, gate and up in one weight");
  std::vector<float> packed = y.get(2);
  b.run([&](bao_handle s) { OK(bao_matmul_glu(s, y.handle, x.handle, w, u, BAO_ACTIVATION_SILU)); });
  expect(packed == y.get(2), "matmul_glu of one weight and of two agree");
  View g = b.rows(1, 2);
  g.set({-1, 0.5f, 2, -30});
  View up = b.rows(1, 2);
  up.set({1, 2, 3, 4});
  b.run([&](bao_handle s) { OK(bao_glu(s, g.handle, g.handle, up.handle, BAO_ACTIVATION_GELU)); });
  near(g.get(2), {gelu(-1), 2 * gelu(0.5), 3 * gelu(2), 0}, "glu in place");
}

void experts(Bench& b) {
  View logits = b.rows(1, 5), ids = b.rows(1, 3, BAO_I32), weights = b.rows(1, 3);
  logits.set({1, 3, 1, 3, 1, 0, NAN, -INFINITY, 0, -1});
  b.fill(2);
  b.run([&](bao_handle s) { OK(bao_topk_softmax(s, ids.handle, weights.handle, logits.handle, 1)); });
  const int32_t first[3] = {1, 3, 0}, second[3] = {0, 3, 4};
  for (int i = 0; i < 3; i++) same(ids.i32(0)[i], first[i], "topk: ties go to the lower id"), same(ids.i32(1)[i], second[i], "topk: NaN ranks last");
  double e = std::exp(-2.0);
  near(std::vector<float>(weights.f32(0), weights.f32(0) + 3), {1 / (2 + e), 1 / (2 + e), e / (2 + e)}, "topk renormalised");
  View all = b.rows(1, 5, BAO_I32), all_weights = b.rows(1, 5);
  b.run([&](bao_handle s) { OK(bao_topk_softmax(s, all.handle, all_weights.handle, logits.handle, 1)); });
  same(all.i32(1)[3], 2, "topk: NaN ranks below -infinity");
  same(all.i32(1)[4], 1, "topk of all gives every id once");
  b.fill(1);
  b.run([&](bao_handle s) { OK(bao_topk_softmax(s, ids.handle, weights.handle, logits.handle, 0)); });
  near(weights.get(1), {1 / (2 + 3 * e), 1 / (2 + 3 * e), e / (2 + 3 * e)}, "topk of the whole softmax");

  // Expert e of w multiplies by e + 1; id 7 does not exist.
  View x = b.rows(1, 2), y = b.rows(3, 2), sum = b.rows(1, 2), xs = b.rows(3, 2);
  bao_handle w = b.matrix({1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3}, 2, 2, 3, BAO_USE_MATMUL);
  x.set({1, 10}), weights.set({1, 0.5f, 0.25f});
  ids.i32()[0] = 2, ids.i32()[1] = 0, ids.i32()[2] = 7;
  b.run([&](bao_handle s) { OK(bao_moe_matmul(s, y.handle, x.handle, w, ids.handle)); });
  near(y.get(1), {3, 30, 1, 10, 0, 0}, "moe_matmul: an id that is no expert gives zeros");
  b.run([&](bao_handle s) { OK(bao_moe_sum(s, sum.handle, y.handle, weights.handle)); });
  near(sum.get(1), {3.5, 35}, "moe_sum");
  xs.set({1, 1, 2, 2, 3, 3});
  ids.i32()[2] = -1;
  b.run([&](bao_handle s) { OK(bao_moe_matmul_sum(s, sum.handle, xs.handle, w, ids.handle, weights.handle)); });
  near(sum.get(1), {4, 4}, "moe_matmul_sum: one row of x per slot");
  bao_handle scaled = b.matrix({1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3}, 2, 2, 3, BAO_USE_MATMUL);
  OK(bao_weight_scale(scaled, b.vector({10, 100, 1000})));
  b.run([&](bao_handle s) { OK(bao_moe_matmul_sum(s, sum.handle, xs.handle, scaled, ids.handle, weights.handle)); });
  near(sum.get(1), {3010, 3010}, "moe_matmul_sum with a factor per expert");
  // gate rows then up rows: silu(2 x0) * (3 x1) for expert 1, silu(x0) * x1 for expert 0.
  bao_handle gate = b.matrix({1, 0, 0, 1, 2, 0, 0, 3}, 2, 2, 2, BAO_USE_MATMUL);
  View glu = b.rows(3, 1);
  ids.i32()[0] = 1, ids.i32()[1] = 0, ids.i32()[2] = 2;
  x.set({1, 5});
  b.run([&](bao_handle s) { OK(bao_moe_matmul_glu(s, glu.handle, x.handle, gate, 0, ids.handle, BAO_ACTIVATION_SILU)); });
  auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  near(glu.get(1), {silu(2) * 15, silu(1) * 5, 0}, "moe_matmul_glu");
  View rx = b.rows(1, 2);
  rx.set({1, 0});
  bao_handle router = b.matrix({1, 0, 3, 0, 1, 0, 3, 0, 1, 0}, 5, 2);
  b.run([&](bao_handle s) { OK(bao_router(s, ids.handle, weights.handle, rx.handle, router, 1)); });
  for (int i = 0; i < 3; i++) same(ids.i32()[i], first[i], "router");
  near(weights.get(1), {1 / (2 + e), 1 / (2 + e), e / (2 + e)}, "router weights");
}

void rows_and_elements(Bench& b) {
  View x = b.rows(1, 3), y = b.rows(1, 3), out = b.outputs(1, 3), ids = b.rows(1, 1, BAO_I32), pooled = b.view(BAO_ROWS_FIXED, 4, 1, 3);
  std::vector<float> table(64 * 3);
  for (int i = 0; i < 64 * 3; i++) table[i] = float(i);
  bao_handle w = b.matrix(table, 64, 3);
  b.fill(3);
  b.row(0, 0, 63, 0), b.row(1, 0, 0, 1), b.row(2, 2, 1, 5);
  b.output(0), b.output(2);
  pooled.set({9, 9, 9, 1, 1, 1, 2, 2, 2, 3, 3, 3});
  b.run([&](bao_handle s) {
    OK(bao_embed(s, x.handle, w, 2));
    OK(bao_gather_rows(s, out.handle, x.handle));
    OK(bao_pool_rows(s, pooled.handle, x.handle));
    OK(bao_softcap(s, y.handle, x.handle, 30));
    OK(bao_scale(s, y.handle, y.handle, 2));
    OK(bao_add(s, y.handle, y.handle, x.handle));
    OK(bao_argmax(s, ids.handle, x.handle));
  });
  near(x.get(3), {378, 380, 382, 0, 2, 4, 6, 8, 10}, "embed");
  near(out.get(2), {378, 380, 382, 6, 8, 10}, "gather_rows");
  near(pooled.get(4), {378, 382, 386, 1, 1, 1, 8, 10, 12, 3, 3, 3}, "pool_rows: position 0 starts anew, others add");
  near(y.f32(1)[1], 2 + 60 * std::tanh(2.0 / 30), "softcap, scale, add");
  same(ids.i32()[0], 2, "argmax");
  x.set({NAN, 5, 5, NAN, NAN, NAN, -INFINITY, -INFINITY, NAN});
  b.run([&](bao_handle s) { OK(bao_argmax(s, ids.handle, x.handle)); OK(bao_copy(s, y.handle, x.handle)); });
  same(ids.i32()[0], 1, "argmax: ties go to the lower index, NaN is smallest");
  same(ids.i32()[1], 0, "argmax of NaN only");
  same(ids.i32()[2], 0, "argmax of -infinity and NaN");
  expect(std::memcmp(x.memory, y.memory, 36) == 0, "copy keeps every bit");
}

void fused_norms(Bench& b) {
  const int32_t n = 37;
  View r = b.rows(1, n), x = b.rows(1, n), xb = b.rows(1, n), sum = b.rows(1, n), y0 = b.rows(1, n), y1 = b.rows(1, n), y2 = b.rows(1, n);
  View p = b.rows(1, n), p0 = b.rows(1, n), p1 = b.rows(1, n), p2 = b.rows(1, n), m = b.rows(1, n), mb = b.rows(1, n);
  std::vector<float> weights[4];
  bao_handle w[4];
  for (int i = 0; i < 4; i++) {
    for (int j = 0; j < n; j++) weights[i].push_back(std::sin(float(7 * i + j)));
    w[i] = b.vector(weights[i]);
  }
  for (int j = 0; j < 3 * n; j++) r.f32()[j] = std::cos(float(j)), x.f32()[j] = std::sin(0.3f * j), xb.f32()[j] = std::sin(0.7f * j);
  b.fill(3);
  b.run([&](bao_handle s) {
    OK(bao_norm_add_norms(s, sum.handle, y0.handle, y1.handle, y2.handle, r.handle, x.handle, w[0], w[1], w[2], w[3], 0.25f, 1e-6f, 0.5f));
    OK(bao_norm_add(s, p.handle, r.handle, x.handle, w[0], 1e-6f, 0.5f));
    OK(bao_rms_norm(s, p0.handle, p.handle, w[1], 1e-6f, 1));
    OK(bao_rms_norm(s, p1.handle, p.handle, w[2], 1e-6f, 0.25f));
    OK(bao_rms_norm(s, p2.handle, p.handle, w[3], 1e-6f, 1));
  });
  expect(sum.get(3) == p.get(3) && y0.get(3) == p0.get(3) && y1.get(3) == p1.get(3) && y2.get(3) == p2.get(3), "norm_add_norms equals the plain ops");
  b.run([&](bao_handle s) {
    OK(bao_moe_merge(s, sum.handle, y0.handle, r.handle, x.handle, w[0], xb.handle, w[1], w[2], w[3], 1e-6f, 0.5f));
    OK(bao_rms_norm(s, m.handle, x.handle, w[0], 1e-6f, 1));
    OK(bao_rms_norm(s, mb.handle, xb.handle, w[1], 1e-6f, 1));
    OK(bao_add(s, m.handle, m.handle, mb.handle));
    OK(bao_norm_add(s, p.handle, r.handle, m.handle, w[2], 1e-6f, 0.5f));
    OK(bao_rms_norm(s, p0.handle, p.handle, w[3], 1e-6f, 1));
  });
  expect(sum.get(3) == p.get(3) && y0.get(3) == p0.get(3), "moe_merge equals the plain ops");
}

// Rounding of activations. 32 columns of weight 1 add up what x was rounded to: 127 makes the int8 step 1.
void precisions(Options options) {
  for (int32_t precision : {BAO_EXACT, BAO_FAST, BAO_FAST_INT8, BAO_FAST_BF16}) {
    if (precision == BAO_FAST_BF16 && !(options.flags & BAO_OPEN_REFERENCE)) continue;  // the reference alone has it
    options.precision = precision;
    Bench b(options);
    uint8_t q8_0[34] = {0x00, 0x3C};  // scale 1 as f16
    std::memset(q8_0 + 2, 1, 32);
    bao_handle quantised = b.weight(BAO_Q8_0, q8_0, sizeof q8_0, 1, 32, 1, BAO_USE_MATMUL), plain = b.matrix(std::vector<float>(32, 1.0f), 1, 32);
    View x = b.rows(1, 32), y = b.rows(1, 1), z = b.rows(1, 1), g = b.rows(1, 1);
    const float values[] = {127, 1.4f, 2.5f, -2.5f};  // 2.5 goes to 2
    for (int32_t r = 0; r < 2; r++) std::memcpy(x.f32(r), values, sizeof values);
    x.f32(1)[5] = INFINITY, x.f32(1)[6] = -INFINITY;
    b.fill(3);
    b.run([&](bao_handle s) {
      OK(bao_matmul(s, y.handle, x.handle, quantised));
      OK(bao_matmul_group(s, g.handle, z.handle, 0, x.handle, quantised, plain, 0));
    });
    std::string name = " at precision " + std::to_string(precision);
    near(y.f32()[0], precision == BAO_EXACT ? 128.4 : precision == BAO_FAST_BF16 ? 128.3984375 : 128, "quantised weight" + name, 1e-6);
    near(g.f32()[0], y.f32()[0], "the same in a group" + name, 0);
    near(z.f32()[0], 128.4, "f32 weight" + name, 1e-6);
    expect(std::isnan(y.f32()[1]), "infinities of both signs give NaN" + name);
    near(y.f32()[2], 0, "a row of zeros" + name, 0);
  }
}

// What is refused, and that the message names the operand.
void refusals(Bench& b) {
  View x = b.rows(1, 4), y = b.rows(1, 4), wide = b.rows(1, 8), out = b.outputs(1, 4), ids = b.rows(1, 2, BAO_I32), logits = b.outputs(1, 64);
  View fixed = b.view(BAO_ROWS_FIXED, 4, 1, 4), table = b.rows(2, 3);
  bao_handle w = b.matrix(std::vector<float>(16), 4, 4), rows_only = b.matrix(std::vector<float>(16), 4, 4, 1, BAO_USE_ROWS);
  bao_handle two = b.matrix(std::vector<float>(32), 4, 4, 2, BAO_USE_MATMUL), vec = b.vector({1, 2, 3, 4, 5});
  bao_handle pool = Bench::must(bao_kv_pool_create(b.device, 0, 2, 1, 16, BAO_F32, BAO_KV_PLAIN, 0, 4), "pool");
  View q = b.rows(3, 16), k = b.rows(1, 16);
  OK(bao_stream_begin(b.stream));
  auto no = [&](int32_t status, int32_t argument, const char* name) {
    std::string found = bao_last_error();
    expect((status & 255) == BAO_INVALID && status >> 8 == argument && found.find(name) != std::string::npos,
           std::string(name) + ": status " + std::to_string(status) + ", expected argument " + std::to_string(argument) + "; " + found);
  };
  no(bao_rms_norm(b.stream, y.handle, wide.handle, 0, 1e-6f, 1), 3, "x");
  no(bao_rms_norm(b.stream, y.handle, x.handle, vec, 1e-6f, 1), 4, "w");
  no(bao_rms_norm(b.stream, y.handle, x.handle, 0, 0, 1), 5, "eps");
  no(bao_rms_norm(b.stream, y.handle, x.handle, 0, NAN, 1), 5, "eps");
  no(bao_rms_norm(b.stream, y.handle, x.handle, 0, 1e-6f, INFINITY), 6, "scale");
  no(bao_rms_norm(b.stream, 0, x.handle, 0, 1e-6f, 1), 2, "dst");
  no(bao_rms_norm(b.stream, y.handle, ids.handle, 0, 1e-6f, 1), 3, "x");
  no(bao_rms_norm(b.stream, y.handle, w, 0, 1e-6f, 1), 3, "x");
  no(bao_add(b.stream, y.handle, x.handle, out.handle), 4, "b");
  no(bao_matmul(b.stream, x.handle, x.handle, w), 2, "overlaps");
  no(bao_matmul(b.stream, y.handle, x.handle, rows_only), 4, "w");
  no(bao_matmul(b.stream, y.handle, x.handle, two), 4, "experts");
  no(bao_matmul(b.stream, y.handle, wide.handle, w), 4, "columns");
  no(bao_matmul(b.stream, wide.handle, x.handle, w), 2, "dst");
  no(bao_matmul_group(b.stream, y.handle, wide.handle, 0, x.handle, w, 0, 0), 3, "w1");
  no(bao_embed(b.stream, x.handle, w, 1), 3, "vocabulary");
  no(bao_embed(b.stream, fixed.handle, rows_only, 1), 2, "FIXED");
  no(bao_rope_table(b.stream, y.handle, 0, 3, 10000, 1), 4, "nRot");
  no(bao_rope(b.stream, y.handle, x.handle, table.handle, 0), 4, "table");
  no(bao_attention(b.stream, q.handle, q.handle, pool, 2, 0, 1), 5, "layer");
  no(bao_attention(b.stream, q.handle, q.handle, pool, 0, -1, 1), 6, "window");
  no(bao_attention(b.stream, x.handle, x.handle, pool, 0, 0, 1), 3, "head_dim");
  no(bao_kv_append(b.stream, pool, 0, k.handle, q.handle), 5, "v");
  no(bao_glu(b.stream, y.handle, x.handle, x.handle, 2), 5, "activation");
  no(bao_gather_rows(b.stream, y.handle, x.handle), 2, "OUTPUT");
  no(bao_pool_rows(b.stream, y.handle, x.handle), 2, "FIXED");
  no(bao_sample(b.stream, out.handle), 2, "logits");
  no(bao_logits_process(b.stream, logits.handle, ids.handle), 3, "mask");
  no(bao_softcap(b.stream, y.handle, x.handle, 0), 4, "cap");
  View many = b.rows(1, 40, BAO_I32), weights = b.rows(1, 40), gates = b.rows(1, 64);
  int32_t status = bao_topk_softmax(b.stream, many.handle, weights.handle, gates.handle, 1);
  expect((status & 255) == BAO_UNSUPPORTED, "topk of 40 is unsupported");
  same(bao_stream_ops(b.stream), 0, "refused ops are not recorded");
  OK(bao_stream_end(b.stream));
}

}  // namespace

int main() {
  for (const Options& options : every_device()) {
    context = name_of(options);
    std::printf("%s\n", name_of(options));
    Bench b(options);
    norms(b);
    rope(b);
    for (int32_t dtype : {BAO_F32, BAO_F16, BAO_Q8_0}) attention(b, dtype);
    append_fused(b);
    matmuls(b);
    experts(b);
    rows_and_elements(b);
    fused_norms(b);
    refusals(b);
    precisions(options);
  }
  return report();
}
