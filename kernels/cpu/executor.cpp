// The thread pool. No thread ever waits for a piece that another one holds while there is work; threads may leave between pieces.
#include "executor.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <pthread.h>

#include "guard.h"

namespace bao {
namespace {

// Long enough to bridge the end of one stage and the start of the next, short enough that a lone long piece does not burn a second core.
constexpr auto spin_time = std::chrono::microseconds(40);
// Pieces of one call: what timeouts wait for.
constexpr int32_t most_pieces = 16;
// Participants with pieces of their own.
constexpr int32_t most_owners = 64;
// Fetched ahead by one thread, and at a time before it looks whether there is work. Part of a core's second-level cache.
constexpr int64_t line_bytes = 64, ahead_lines = (128 << 10) / line_bytes, lines_at_once = 8;
static_assert(ahead_lines < 1 << 12, "packed into 12 bits");

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void name_thread(int32_t number) {
  char name[16];
  std::snprintf(name, sizeof name, "bao-cpu-%d", number);
#if defined(__APPLE__)
  pthread_setname_np(name);
#else
  pthread_setname_np(pthread_self(), name);
#endif
}

}  // namespace

Executor::Executor(int32_t threads) : threads_(threads), losses_(guard_losses()), ahead_(new Ahead[static_cast<size_t>(threads)]) {
  scratch_ = static_cast<char*>(pages_allocate(threads * worker_scratch_bytes));
  if (!scratch_) throw std::bad_alloc();
  // Signals are for the program's own threads: the pool inherits a mask that blocks all but those that a thread causes itself (guard.h).
  sigset_t all, before;
  sigfillset(&all);
  for (int caused : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&all, caused);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (int32_t i = 1; i < threads; i++) pool_.emplace_back([this, i] { pool_thread(i); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    quit_.store(true);
    { std::lock_guard<std::mutex> hold(lock_); }
    work_.notify_all();
    for (std::thread& thread : pool_) thread.join();
    pages_free(scratch_, threads * worker_scratch_bytes);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Executor::~Executor() {
  cancel_all();
  wait(nullptr, 1e9);
  quit_.store(true);
  { std::lock_guard<std::mutex> hold(lock_); }
  work_.notify_all();
  for (std::thread& thread : pool_) thread.join();
  pages_free(scratch_, threads_ * worker_scratch_bytes);
}

Run Executor::run_of(const Job& job, int32_t participant) const {
  return Run{&job.stream->step->ref, job.stream->scratch, scratch_ + participant * worker_scratch_bytes, worker_scratch_bytes, threads_};
}

bool Executor::ended(const Stream::SlotState* slot) const {
  return slot ? slot->status.load(std::memory_order_acquire) != BAO_PENDING : idle();
}

// The caller writes the word at any time; only the serial of this very step counts.
bool Executor::cancelled(const Job& job) const {
  const int32_t* word = reinterpret_cast<const int32_t*>(job.stream->step->host_field(job.slot, BAO_FIELD_HEADER)) + BAO_HEADER_CANCEL;
  return __atomic_load_n(word, __ATOMIC_RELAXED) == job.serial || cancel_all_.load(std::memory_order_relaxed);
}

// ---- threads

void Executor::pool_thread(int32_t number) {
  name_thread(number);
  while (!quit_.load(std::memory_order_relaxed)) {
    if (run_one(number, most_pieces)) continue;
    if (!idle()) {
      Clock::time_point until = Clock::now() + spin_time;
      do {
        for (int i = 0; i < 32 && !has_work(); i++) {
          if (!fetch_ahead(number)) pause_briefly();
        }
      } while (!has_work() && !idle() && Clock::now() < until);
      if (has_work()) continue;
    }
    std::unique_lock<std::mutex> hold(lock_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);  // before the look at word_: wake() reads them in the other order
    while (!has_work() && !quit_.load(std::memory_order_relaxed)) work_.wait(hold);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Executor::wait(const Stream::SlotState* slot, double timeout_ms) {
  Clock::time_point deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(timeout_ms));
  for (;;) {
    if (ended(slot)) return;
    bool ran = run_one(0, most_pieces);
    if (ended(slot)) return;
    Clock::time_point now = Clock::now();
    if (now >= deadline) break;
    if (ran) continue;
    Clock::time_point until = std::min(deadline, now + spin_time);
    do {
      for (int i = 0; i < 32 && !has_work() && !ended(slot); i++) {
        if (!fetch_ahead(0)) pause_briefly();
      }
    } while (!has_work() && !ended(slot) && Clock::now() < until);
    if (has_work()) continue;
    std::unique_lock<std::mutex> hold(lock_);
    waiter_sleeps_.store(true, std::memory_order_seq_cst);
    while (!has_work() && !ended(slot) && answer_.wait_until(hold, deadline) == std::cv_status::no_timeout) {
    }
    waiter_sleeps_.store(false, std::memory_order_seq_cst);
  }
  // A stage of one piece wakes nobody, because the thread that set it up would run it: not if that thread leaves.
  if (has_work()) wake(1);
}

void Executor::poll() {
  if (threads_ == 1) run_one(0, 1);
}

void Executor::wake(int32_t threads) {
  if (threads <= 0) return;
  if (sleepers_.load(std::memory_order_seq_cst) == 0 && !waiter_sleeps_.load(std::memory_order_seq_cst)) return;
  std::lock_guard<std::mutex> hold(lock_);
  if (waiter_sleeps_.load(std::memory_order_relaxed)) {
    answer_.notify_one();
    threads--;
  }
  int32_t asleep = sleepers_.load(std::memory_order_relaxed);
  if (threads >= asleep) {
    work_.notify_all();
  } else {
    for (; threads > 0; threads--) work_.notify_one();
  }
}

// ---- pieces and stages

int32_t Executor::take_piece(int32_t participant) {
  uint64_t word = word_.load(std::memory_order_acquire);
  do {
    if (static_cast<uint32_t>(word) == 0) return -1;
  } while (!word_.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel, std::memory_order_acquire));
  return choose_piece(participant);
}

// Whoever lowered word_ finds a piece: its own, one of those that are everybody's, or one of somebody who is late.
int32_t Executor::choose_piece(int32_t participant) {
  auto claim = [&](int32_t i) { return (owned_.fetch_and(~(uint64_t{1} << i), std::memory_order_relaxed) >> i & 1) != 0; };
  if (participant < most_owners && claim(participant)) return participant;
  int32_t next = rest_.fetch_add(1, std::memory_order_relaxed);
  if (next < pieces_) return next;
  for (;;) {
    uint64_t left = owned_.load(std::memory_order_relaxed);
    if (left == 0) continue;
    int32_t last = 63 - __builtin_clzll(left);
    if (claim(last)) return last;
  }
}

// Runs a held piece, and those of the same stage that the op takes on the way, unless the job is over.
void Executor::run_piece(Taker& taker, int32_t piece) {
  Job* job = job_;
  auto end = [job](int32_t status) {
    int32_t expected = BAO_OK;
    job->status.compare_exchange_strong(expected, status);
    job->stopped.store(true, std::memory_order_relaxed);
  };
  if (job->stopped.load(std::memory_order_relaxed)) return;
  if (cancelled(*job)) return end(BAO_CANCELLED);
  try {
    Run run = run_of(*job, taker.participant);
    run.taker = &taker;
    run.take = [](void* p) {
      Taker& t = *static_cast<Taker*>(p);
      if (t.left == 0 || t.executor->cancelled(*t.executor->job_)) return -1;
      int32_t next = t.executor->take_piece(t.participant);
      if (next >= 0) t.held++, t.left--;
      return next;
    };
    run_(args_, run, piece);
  } catch (...) {
    end(BAO_INTERNAL);
  }
}

bool Executor::run_one(int32_t participant, int32_t most) {
  int32_t piece = take_piece(participant);
  if (piece < 0) return false;
  Taker taker{this, participant, most, 0};
  while (piece >= 0) {
    taker.held = 1;
    taker.left--;
    run_piece(taker, piece);
    bool last = unfinished_.fetch_sub(taker.held, std::memory_order_acq_rel) == taker.held;
    piece = last ? advance(participant, taker.left > 0) : -1;
  }
  return true;
}

// Called by the one thread that ended a stage (or found the queue idle): sets up the next stage that has pieces, of this job or the next.
// goes_on: the caller will run a piece of it at once. Gives that piece; -1 where it is not to, or where the job has changed, because it may be
// the caller who waited for its end.
int32_t Executor::advance(int32_t participant, bool goes_on) {
  Job* job = job_;
  for (;;) {
    end_timing(job);
    const std::vector<Stage>& stages = job->stream->stages;
    while (!job->stopped.load(std::memory_order_relaxed) && job->next_stage < stages.size()) {
      const Stage& stage = stages[job->next_stage++];
      int32_t pieces = stage.pieces(stage.args.get(), run_of(*job, participant));
      if (pieces <= 0) continue;
      run_ = stage.run;
      args_ = stage.args.get();
      pieces_ = pieces;
      if (job->profile) {
        timed_op_ = static_cast<size_t>(stage.op) + 1;
        stage_began_ = Clock::now();
      }
      const int32_t owned = std::min({pieces, threads_, most_owners}), left = pieces - (goes_on ? 1 : 0);
      unfinished_.store(pieces, std::memory_order_relaxed);
      owned_.store(~uint64_t{0} >> (64 - owned), std::memory_order_relaxed);
      rest_.store(owned, std::memory_order_relaxed);
      uint64_t number = (word_.load(std::memory_order_relaxed) >> 32) + 1;
      word_.store(number << 32 | static_cast<uint32_t>(left), std::memory_order_seq_cst);
      wake(pieces - 1);
      if (!goes_on) return -1;
      int32_t piece = choose_piece(participant);
      announce(*job, participant);
      return piece;
    }
    finish(job);
    goes_on = false;
    {
      std::lock_guard<std::mutex> hold(lock_);
      job = first_ < last_ ? &jobs_[first_ % ring] : nullptr;
      job_ = job;
      if (!job) return -1;
    }
    begin(job);
  }
}

// Tells the others where to fetch for the next stage that waits for memory. Called while a piece of the stage before is held.
void Executor::announce(const Job& job, int32_t participant) {
  if (threads_ == 1) return;
  const std::vector<Stage>& stages = job.stream->stages;
  if (announced_ > job.next_stage) return;  // what was told last is still to come
  Beginning beginnings[most_owners];
  Run run = run_of(job, participant);
  run.beginnings = beginnings;
  run.beginnings_wanted = std::min(threads_, most_owners);
  for (announced_ = job.next_stage; announced_ < stages.size(); announced_++) {
    const Stage& stage = stages[announced_];
    if (stage.pieces(stage.args.get(), run) > 0 && beginnings[0].data) break;
  }
  announced_++;
  for (int32_t i = 0; i < run.beginnings_wanted; i++) {
    const Beginning& b = beginnings[i];
    const uint64_t line = reinterpret_cast<uintptr_t>(b.data) / line_bytes;
    const int64_t lines = b.bytes / line_bytes * (b.apart ? beginning_places : 1);
    ahead_[i].apart.store(b.apart, std::memory_order_relaxed);
    ahead_[i].lines.store(line << 12 | static_cast<uint64_t>(std::min(lines, ahead_lines)), std::memory_order_relaxed);
  }
}

// Asks for a few lines of what the participant reads first in a later stage; false: there are none left.
bool Executor::fetch_ahead(int32_t participant) {
  Ahead& ahead = ahead_[participant];
  const uint64_t lines = ahead.lines.load(std::memory_order_relaxed);
  if (lines != ahead.seen) ahead.seen = lines, ahead.asked = 0;
  const int32_t end = std::min(static_cast<int32_t>(lines & 0xfff), ahead.asked + static_cast<int32_t>(lines_at_once));
  if (ahead.asked >= end) return false;
  const int64_t apart = ahead.apart.load(std::memory_order_relaxed);
  const uintptr_t line = static_cast<uintptr_t>(lines >> 12) * line_bytes;
  for (; ahead.asked < end; ahead.asked++) {
    const int64_t at = apart ? ahead.asked / beginning_places * line_bytes + ahead.asked % beginning_places * apart : ahead.asked * line_bytes;
    __builtin_prefetch(reinterpret_cast<const char*>(line + static_cast<uintptr_t>(at)), 0, 2);
  }
  return true;
}

void Executor::end_timing(Job* job) {
  if (timed_op_ == 0) return;
  job->nanoseconds[timed_op_ - 1] += std::chrono::duration<double, std::nano>(Clock::now() - stage_began_).count();
  timed_op_ = 0;
}

void Executor::begin(Job* job) {
  announced_ = 0;
  int32_t& outcome = job->stream->step->outcome[job->slot];
  if (!job->continues) outcome = BAO_OK;
  int32_t status = outcome;
  if (status != BAO_OK) {
    std::snprintf(job->error, sizeof job->error, "an earlier submit of the same step failed or was cancelled");
  } else if (!submit_begin(*job->stream, job->slot, job->continues, job->committed, job->error, sizeof job->error)) {
    status = BAO_INVALID;
  } else if (cancelled(*job)) {
    status = BAO_CANCELLED;
  }
  job->status.store(status);
  job->stopped.store(status != BAO_OK);
}

void Executor::finish(Job* job) {
  std::lock_guard<std::mutex> hold(lock_);
  Stream* stream = job->stream;
  Stream::SlotState& state = stream->slot_state[job->slot];
  for (size_t i = 0; i < job->nanoseconds.size(); i++) stream->ops[i].nanoseconds += job->nanoseconds[i];
  int32_t status = job->status.load();
  if (status == BAO_OK && guard_losses() != losses_) {
    status = BAO_DEVICE;
    std::snprintf(job->error, sizeof job->error, "a mapped file became shorter, or its disk failed, while it was in use: what was computed is not to be trusted");
  }
  if (status == BAO_INTERNAL && !job->error[0]) std::snprintf(job->error, sizeof job->error, "unexpected exception in a piece of work");
  if (status == BAO_CANCELLED && !job->error[0]) std::snprintf(job->error, sizeof job->error, "the step was cancelled");
  state.error.assign(job->error);
  stream->step->outcome[job->slot] = status;
  stream->step->busy[job->slot].fetch_sub(1, std::memory_order_release);
  first_++;
  // From here on the stream may be freed by its owner.
  state.status.store(status, std::memory_order_release);
  queued_.fetch_sub(1, std::memory_order_release);
  if (waiter_sleeps_.load(std::memory_order_relaxed)) answer_.notify_one();
}

// ---- queue

void Executor::submit(Stream* stream, int32_t slot, int32_t serial, bool continues, const int32_t committed[4]) {
  Job* job;
  bool first;
  {
    std::lock_guard<std::mutex> hold(lock_);
    job = &jobs_[last_ % ring];
    job->stream = stream;
    job->slot = slot;
    job->serial = serial;
    job->continues = continues;
    std::copy(committed, committed + 4, job->committed);
    job->profile = stream->profile;
    job->nanoseconds.assign(stream->profile ? stream->ops.size() : 0, 0.0);
    job->next_stage = 0;
    job->status.store(BAO_OK);
    job->stopped.store(false);
    job->error[0] = 0;
    Stream::SlotState& state = stream->slot_state[slot];
    state.owed = true;
    state.status.store(BAO_PENDING, std::memory_order_relaxed);
    stream->step->busy[slot].fetch_add(1, std::memory_order_relaxed);
    first = job_ == nullptr;
    if (first) job_ = job;
    last_++;
    queued_.fetch_add(1, std::memory_order_release);
  }
  if (first) {
    begin(job);
    advance(0, false);
    // advance() counted on this thread for one of the pieces; it is needed elsewhere.
    if (has_work()) wake(1);
  }
}

void Executor::cancel_all() { cancel_all_.store(true, std::memory_order_relaxed); }

}  // namespace bao
