// What op files use: a Run encodes launches of kernels. A launch names what it reads and writes, and barriers follow from that alone: kernels run
// side by side (a concurrent encoder) unless one touches what another writes.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>

#include "backend.h"

namespace bao {

// How long a launch takes is estimated for the smallest chips (M1: 68 GB/s, 2.6 TFLOP/s of f32), at what simple kernels reach there. It decides where
// command buffers end, never what is computed: a system that needs the GPU for its screen ends the process's work when one takes too long.
constexpr double bytes_a_nanosecond = 60, flops_a_nanosecond = 1500, launch_nanoseconds = 2000;
inline double estimate(double bytes, double flops) { return std::max(bytes / bytes_a_nanosecond, flops / flops_a_nanosecond) + launch_nanoseconds; }

// The launches of one submit: a command buffer with one encoder, and another when that holds enough work; and what was touched since the last barrier.
class Pass {
 public:
  // most: estimated nanoseconds of a command buffer. early: launches after which the first one is committed, so that the GPU starts; 0: never.
  Pass(MetalBackend& backend, std::shared_ptr<Completion> completion, double most, int32_t early) : backend_(backend), completion_(std::move(completion)), most_(most), early_(early) {}
  // Bound in every encoder, at indices that launches leave alone. Tracked: every kernel reads it.
  void bind(int index, const void* address, int64_t bytes, bool tracked);
  void bind_bytes(int index, const void* data, size_t size);
  void next();  // commits what there is; the next launch opens another command buffer
  void end();   // and no more come
  bool failed() const { return !error_.empty(); }
  void fail(const std::string& text, int32_t status = BAO_INTERNAL) { if (error_.empty()) error_ = text, status_ = status; }
  const std::string& error() const { return error_; }
  int32_t status() const { return status_; }
  // A launch longer than this is to be cut (Run::cut): command buffers end after a launch, so that two halves fill one.
  double most_of_a_launch() const { return most_ / 2; }

  std::function<void()> reopened;  // called when a command buffer but the first was opened
  int32_t op = -1;                 // which `timed` names
  bool profile = false;
  std::vector<std::pair<int32_t, id<MTLCommandBuffer>>> timed;

 private:
  friend class Launch;
  struct Span { const char *low, *high; };
  struct Fixed { int index; const void* address; int64_t bytes; bool by_value; };
  void open();
  void spend(double nanoseconds);
  MetalBackend& backend_;
  std::shared_ptr<Completion> completion_;
  id<MTLCommandBuffer> commands_ = nil;
  id<MTLComputeCommandEncoder> encoder_ = nil;  // nil: none is open
  double most_, spent_ = 0;
  int32_t early_, launches_ = 0, opened_ = 0;
  bool opening_ = false;
  std::vector<Fixed> fixed_;
  std::vector<Span> always_, read_, written_;
  std::string error_;
  int32_t status_ = BAO_OK;
};

// A kernel about to be dispatched. Nothing happens once something has failed: the pass tells.
class Launch {
 public:
  Launch(Pass& pass, const char* module, const char* kernel, int32_t dtype = -1);
  // Operand `index`, which may be absent: a null address, or a tensor without data.
  Launch& in(int index, const void* address, int64_t bytes);
  Launch& out(int index, void* address, int64_t bytes);
  Launch& in(int index, const Tensor& t) { return in(index, t.data, extent(t)); }
  Launch& out(int index, const Tensor& t) { return out(index, t.data, extent(t)); }
  Launch& in(int index, const WeightRef& w) { return in(index, w.data, w.expert_bytes * w.experts); }
  // What is backed of a layer of a KV pool.
  Launch& pool(int index, const PoolRef& pool, int32_t layer, bool written);
  template <class Params>
  Launch& params(const Params& p) {
    static_assert(sizeof p <= 4096, "what setBytes takes");
    return bytes(AT_PARAMS, &p, sizeof p);
  }
  Launch& bytes(int index, const void* data, size_t size);
  Launch& group_memory(int index, int64_t size);
  // Bytes that it moves and multiplications and additions that it does, about; without it, what its threads would do if each made an element.
  Launch& cost(double bytes, double flops) { return cost_ = estimate(bytes, flops), *this; }
  // Threads of a threadgroup for n elements, of a kernel that takes any number: no more than the device gives it.
  int32_t threads_for(int64_t n, int32_t most) const;
  // A grid of threads, in threadgroups of `group` of them; threads beyond the grid do not exist.
  void threads(int64_t x, int64_t y, int64_t z, int32_t group);
  // A grid of threadgroups of `group` threads.
  void groups(int64_t x, int64_t y, int64_t z, int32_t group);

  static int64_t extent(const Tensor& t) { return t.data ? int64_t(t.d0 - 1) * t.stride + t.columns() * 4 : 0; }

 private:
  bool bind(int index, const void* address, int64_t bytes);
  void order();
  void dispatch(int64_t x, int64_t y, int64_t z, int32_t group, bool grid_of_groups);
  Pass& pass_;
  id<MTLComputePipelineState> pipeline_;
  Pass::Span read_[24], written_[8];
  int reads_ = 0, writes_ = 0;
  double cost_ = 0;
};

// What a stage sees when it encodes: bounds that the host knows. Kernels ask the step for the true counts.
struct Run {
  Pass* pass;
  char* scratch;
  int32_t rows, outputs;
  const Step* step;
  int32_t slot;
  int32_t reach;  // positions that a row of the step may have before it, its own included, at most
  int32_t bound(const Tensor& t) const { return t.rows_of == BAO_ROWS_FIXED ? t.d0 : t.rows_of == BAO_ROWS_STEP ? rows : outputs; }
  // A packed f32 tensor in scratch whose rows count like those of `like`.
  Tensor scratch_tensor(int64_t offset, const Tensor& like, int32_t d1, int32_t d2) const {
    return Tensor{scratch + offset, int64_t(d1) * d2 * 4, like.rows_of, BAO_F32, like.d0, d1, d2};
  }
  Launch launch(const char* module, const char* kernel, int32_t dtype = -1) const { return Launch(*pass, module, kernel, dtype); }
  // Calls encode(first, count, share) for ranges of `total` items, multiples of `unit`, so that none takes too long when all would cost so much. A range
  // costs `share` of it: for Launch::cost.
  template <class Encode>
  void cut(int32_t total, int32_t unit, double bytes, double flops, Encode&& encode) const {
    int64_t units = (int64_t(total) + unit - 1) / unit;
    double wanted = std::ceil(estimate(bytes, flops) / pass->most_of_a_launch());
    int64_t parts = wanted < double(units) ? int64_t(wanted) : units, each = parts > 0 ? (units + parts - 1) / parts * unit : 1;
    for (int64_t first = 0; first < total; first += each) {
      int32_t count = int32_t(std::min(each, total - first));
      encode(int32_t(first), count, double(count) / total);
    }
  }
};

// Records one stage that encodes by Encode(args, run).
template <class Args, void (*Encode)(const Args&, const Run&)>
void stage(Builder& builder, const Args& args) {
  builder.add(&args, sizeof args, nullptr, [](const void* a, const Run& run, int32_t) { Encode(*static_cast<const Args*>(a), run); });
}

inline Rows rows_of(const Tensor& t) { return t.data ? Rows{t.stride / 4, t.rows_of, t.d0, t.d1, t.d2} : Rows{}; }
inline WeightRows rows_of(const WeightRef& w) {
  return WeightRows{w.row_bytes, w.expert_bytes, w.rows, w.columns, w.experts, w.factors ? w.factor_count : 0};
}

inline PoolLayer layer_of(const PoolRef& p) { return PoolLayer{p.page_stride, p.plane_bytes, p.scales_offset, p.table, p.kv_heads, p.head_dim, p.dtype}; }

// Threads of a threadgroup for n elements: whole simdgroups, up to `most`.
inline int32_t group_for(int64_t n, int32_t most = 256) { return int32_t(n >= most ? most : (n + 31) / 32 * 32); }

// ---- launches that other ops are made of
void encode_glu(const GluArgs&, const Run&);
void encode_page_copy(Pass&, const PoolRef&, int32_t destination, int32_t source, int32_t tokens);

// ---- record functions, one for each row of OpTable
namespace metal {
void embed(Builder&, const EmbedArgs&);
void rms_norm(Builder&, const RmsNormArgs&);
void norm_add(Builder&, const NormAddArgs&);
void add_norm(Builder&, const AddNormArgs&);
void norm_add_norms(Builder&, const NormAddNormsArgs&);
void moe_merge(Builder&, const MoeMergeArgs&);
void rope_table(Builder&, const RopeTableArgs&);
void rope(Builder&, const RopeArgs&);
void kv_append(Builder&, const KvAppendArgs&);
void head_norm_rope_append(Builder&, const HeadNormRopeAppendArgs&);
void attention(Builder&, const AttentionArgs&);
void matmul(Builder&, const MatmulArgs&);
void matmul_group(Builder&, const MatmulGroupArgs&);
void glu(Builder&, const GluArgs&);
void matmul_glu(Builder&, const MatmulGluArgs&);
void topk_softmax(Builder&, const TopkSoftmaxArgs&);
void router(Builder&, const RouterArgs&);
void moe_matmul(Builder&, const MoeMatmulArgs&);
void moe_matmul_glu(Builder&, const MoeMatmulGluArgs&);
void moe_sum(Builder&, const MoeSumArgs&);
void moe_matmul_sum(Builder&, const MoeMatmulSumArgs&);
void add(Builder&, const AddArgs&);
void scale(Builder&, const ScaleArgs&);
void softcap(Builder&, const ScaleArgs&);
void copy(Builder&, const CopyArgs&);
void gather_rows(Builder&, const CopyArgs&);
void ple_combine(Builder&, const PleCombineArgs&);
void pool_rows(Builder&, const CopyArgs&);
void argmax(Builder&, const CopyArgs&);
void logits_process(Builder&, const LogitsArgs&);
void logprobs(Builder&, const SampleArgs&);
void sample(Builder&, const SampleArgs&);
}  // namespace metal

}  // namespace bao
