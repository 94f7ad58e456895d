// Ops that touch each element or row once: launches of elementwise.metal.
#include "encode.h"

namespace bao {
namespace {

void each(const Run& run, const char* kernel, const Tensor& dst, const Tensor& a, const Tensor& b, float factor) {
  int32_t rows = run.bound(dst);
  if (rows <= 0) return;
  Launch launch = run.launch("elementwise", kernel);
  launch.out(0, dst).in(1, a);
  if (b.present()) launch.in(2, b);
  launch.params(ElementParams{rows_of(dst), rows_of(a), rows_of(b), factor}).threads(dst.columns(), rows, 1, group_for(dst.columns()));
}

void encode_add(const AddArgs& a, const Run& run) { each(run, "add", a.dst, a.a, a.b, 0); }
void encode_scale(const ScaleArgs& a, const Run& run) { each(run, "scale", a.dst, a.x, Tensor{}, a.factor); }
void encode_softcap(const ScaleArgs& a, const Run& run) { each(run, "softcap", a.dst, a.x, Tensor{}, a.factor); }
void encode_copy(const CopyArgs& a, const Run& run) { each(run, "copy", a.dst, a.x, Tensor{}, 0); }
void encode_gather(const CopyArgs& a, const Run& run) { each(run, "gather_rows", a.dst, a.x, Tensor{}, 0); }
void encode_pool(const CopyArgs& a, const Run& run) { each(run, "pool_rows", a.dst, a.x, Tensor{}, 0); }

void encode_argmax(const CopyArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows <= 0) return;
  Launch launch = run.launch("elementwise", "argmax");
  launch.out(0, a.dst).in(1, a.x).params(ElementParams{rows_of(a.dst), rows_of(a.x), Rows{}, 0}).groups(1, rows, 1, launch.threads_for(a.x.columns(), 1024));
}

}  // namespace

namespace metal {
void add(Builder& b, const AddArgs& a) { stage<AddArgs, encode_add>(b, a); }
void scale(Builder& b, const ScaleArgs& a) { stage<ScaleArgs, encode_scale>(b, a); }
void softcap(Builder& b, const ScaleArgs& a) { stage<ScaleArgs, encode_softcap>(b, a); }
void copy(Builder& b, const CopyArgs& a) { stage<CopyArgs, encode_copy>(b, a); }
void gather_rows(Builder& b, const CopyArgs& a) { stage<CopyArgs, encode_gather>(b, a); }
void pool_rows(Builder& b, const CopyArgs& a) { stage<CopyArgs, encode_pool>(b, a); }
void argmax(Builder& b, const CopyArgs& a) { stage<CopyArgs, encode_argmax>(b, a); }
}  // namespace metal

}  // namespace bao
