// Runs submits: one after another, the stages of each in order, the pieces of a stage on whichever thread is free.
// N threads are N - 1 pool threads and the thread that waits; with N = 1 nothing runs unless somebody waits or polls.
// Who ends a stage goes on with the next one at once; who finds no piece left fetches the weights that its own first piece of a later stage reads.
#pragma once
#include <chrono>
#include <condition_variable>
#include <thread>

#include "core.h"

namespace bao {

// A queued submit.
struct Job {
  Stream* stream = nullptr;
  int32_t slot = 0, serial = 0;
  bool continues = false;                // another submit of this serial came before: the step has started
  int32_t committed[4] = {};             // per page table: pages that were backed in every pool of the recording
  bool profile = false;
  size_t next_stage = 0;
  std::atomic<bool> stopped{false};      // cancelled or failed: what is left is counted down, not run
  std::atomic<int32_t> status{BAO_OK};
  char error[256] = "";
  std::vector<double> nanoseconds;       // per recorded op, when profiling
};

class Executor {
 public:
  explicit Executor(int32_t threads);    // throws std::bad_alloc or std::system_error when there are no resources for them
  ~Executor();                           // cancels, ends what is queued and joins the pool

  // Queues a checked submit of stream->step's slot; the queue must not be full.
  void submit(Stream* stream, int32_t slot, int32_t serial, bool continues, const int32_t committed[4]);
  // Works until the slot's submit has ended (null: until the queue is empty) or the time is over.
  void wait(const Stream::SlotState* slot, double timeout_ms);
  // Runs one piece when there are no pool threads.
  void poll();
  // Everything queued ends as cancelled.
  void cancel_all();
  bool full() const { return queued_.load(std::memory_order_acquire) >= ring; }
  bool idle() const { return queued_.load(std::memory_order_acquire) == 0; }
  std::mutex& lock() { return lock_; }   // held while a finished job's times are added to its stream

  static constexpr int64_t worker_scratch_bytes = 1 << 20;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int ring = 64;

  void pool_thread(int32_t number);
  int32_t take_piece(int32_t participant);
  int32_t choose_piece(int32_t participant);
  // What a participant may still take in one call, and what it holds of the running stage, in pieces.
  struct Taker {
    Executor* executor;
    int32_t participant, left, held;
  };
  void run_piece(Taker& taker, int32_t piece);
  bool run_one(int32_t participant, int32_t most);  // most: pieces
  int32_t advance(int32_t participant, bool goes_on);
  void announce(const Job& job, int32_t participant);
  bool fetch_ahead(int32_t participant);
  void begin(Job* job);
  void finish(Job* job);
  void end_timing(Job* job);
  void wake(int32_t threads);
  bool has_work() const { return static_cast<uint32_t>(word_.load(std::memory_order_seq_cst)) != 0; }
  bool ended(const Stream::SlotState* slot) const;
  bool cancelled(const Job& job) const;
  Run run_of(const Job& job, int32_t participant) const;

  int32_t threads_;
  const int64_t losses_;                 // guard_losses() when the device was opened: any more and its results are wrong
  char* scratch_ = nullptr;              // worker_scratch_bytes for each participant; the waiting thread is participant 0

  // The running stage. word_ = stage number << 32 | pieces not yet taken. Whoever lowers it holds a piece, and while a piece is held the
  // stage cannot change: run_, args_, pieces_ and job_ are read only then. The one that finishes the last piece sets the next stage.
  alignas(128) std::atomic<uint64_t> word_{0};
  // Which piece it is. Bit i of owned_: piece i, which is participant i's, is not yet taken; those from rest_ on are everybody's.
  alignas(128) std::atomic<uint64_t> owned_{0};
  std::atomic<int32_t> rest_{0};
  alignas(128) std::atomic<int32_t> unfinished_{0};
  alignas(128) RunFn run_ = nullptr;
  const void* args_ = nullptr;
  int32_t pieces_ = 0;
  Job* job_ = nullptr;
  size_t timed_op_ = 0;
  Clock::time_point stage_began_{};
  size_t announced_ = 0;                 // stages of the running job that announce() has looked at

  // What a participant's own piece of a later stage reads first: a line's number << 12 | lines. An address and no more: when it is
  // fetched that stage may be over and the weight gone, which a prefetch does not mind.
  struct alignas(64) Ahead {
    std::atomic<uint64_t> lines{0};
    std::atomic<int64_t> apart{0};       // not 0: the lines are four places' in turns. Another address if both change meanwhile, and no more
    uint64_t seen = 0;                   // by its participant alone: the last `lines`, and how many of them have been asked for
    int32_t asked = 0;
  };
  std::unique_ptr<Ahead[]> ahead_;

  // The queue, oldest first.
  std::mutex lock_;
  Job jobs_[ring];
  int64_t first_ = 0, last_ = 0;         // jobs first_ ... last_ - 1 are queued
  std::atomic<int32_t> queued_{0};
  std::atomic<bool> cancel_all_{false}, quit_{false};

  // Sleeping threads.
  std::condition_variable work_, answer_;
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> waiter_sleeps_{false};
  std::vector<std::thread> pool_;
};

}  // namespace bao
