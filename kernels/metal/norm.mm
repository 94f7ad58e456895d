// RMS norms and what Gemma and Llama do around them: launches of norm.metal.
#include "encode.h"

namespace bao {
namespace {

// Operands in the order of their buffers: tensors first, then weights of d2 values.
struct Operand { const Tensor* tensor; const float* weight; };
Operand of(const Tensor& t) { return {&t, nullptr}; }
Operand of(const float* w) { return {nullptr, w}; }

void norm(const Run& run, const char* kernel, int written, std::initializer_list<Operand> operands, float eps, float scale, float scale1) {
  const Tensor& leader = *operands.begin()->tensor;
  int32_t rows = run.bound(leader);
  if (rows <= 0) return;
  NormParams p{{}, eps, scale, scale1, 0};
  Launch launch = run.launch("norm", kernel);
  int i = 0;
  for (const Operand& o : operands) {
    bool given = o.tensor ? o.tensor->present() : o.weight != nullptr;
    p.present |= given << i;
    if (o.tensor) p.v[i] = rows_of(*o.tensor);
    if (o.tensor && i < written) launch.out(i, *o.tensor);
    else if (o.tensor) launch.in(i, *o.tensor);
    else launch.in(i, o.weight, int64_t(leader.d2) * 4);
    i++;
  }
  launch.params(p).cost(double(rows) * double(leader.columns()) * 4 * double(operands.size()), 0).groups(leader.d1, rows, 1, group_for(leader.d2));
}

void encode_rms_norm(const RmsNormArgs& a, const Run& run) { norm(run, "rms_norm", 1, {of(a.dst), of(a.x), of(a.w)}, a.eps, a.scale, 1.0f); }
void encode_norm_add(const NormAddArgs& a, const Run& run) { norm(run, "norm_add", 1, {of(a.dst), of(a.residual), of(a.x), of(a.w)}, a.eps, a.scale, 1.0f); }
void encode_add_norm(const AddNormArgs& a, const Run& run) { norm(run, "add_norm", 2, {of(a.sum), of(a.dst), of(a.residual), of(a.x), of(a.w)}, a.eps, 1.0f, 1.0f); }
void encode_norm_add_norms(const NormAddNormsArgs& a, const Run& run) {
  norm(run, "norm_add_norms", 4, {of(a.sum), of(a.y0), of(a.y1), of(a.y2), of(a.residual), of(a.x), of(a.w), of(a.w0), of(a.w1), of(a.w2)}, a.eps, a.scale, a.scale1);
}
void encode_moe_merge(const MoeMergeArgs& a, const Run& run) {
  norm(run, "moe_merge", 2, {of(a.sum), of(a.y), of(a.residual), of(a.a), of(a.b), of(a.wa), of(a.wb), of(a.w), of(a.wy)}, a.eps, a.scale, 1.0f);
}
void encode_ple_combine(const PleCombineArgs& a, const Run& run) {
  norm(run, "ple_combine", 1, {of(a.dst), of(a.projected), of(a.token), of(a.w)}, a.eps, a.scale, a.projected_scale);
}

}  // namespace

namespace metal {
void rms_norm(Builder& b, const RmsNormArgs& a) { stage<RmsNormArgs, encode_rms_norm>(b, a); }
void norm_add(Builder& b, const NormAddArgs& a) { stage<NormAddArgs, encode_norm_add>(b, a); }
void add_norm(Builder& b, const AddNormArgs& a) { stage<AddNormArgs, encode_add_norm>(b, a); }
void norm_add_norms(Builder& b, const NormAddNormsArgs& a) { stage<NormAddNormsArgs, encode_norm_add_norms>(b, a); }
void moe_merge(Builder& b, const MoeMergeArgs& a) { stage<MoeMergeArgs, encode_moe_merge>(b, a); }
void ple_combine(Builder& b, const PleCombineArgs& a) { stage<PleCombineArgs, encode_ple_combine>(b, a); }
}  // namespace metal

}  // namespace bao
