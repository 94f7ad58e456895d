// The executor: order of stages, timeouts, cancellation, closing while busy. Worth running under -fsanitize=thread and -fsanitize=address; never measures
// time except to prove that a wait ends.
#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../kernels/cpu/core.h"
#include "rig.h"

using namespace bao;
using namespace rig;

namespace {

void work_for(double microseconds) {
  Clock::time_point start = Clock::now();
  while (milliseconds_since(start) * 1000 < microseconds) {
  }
}

// ---- stages

// Each piece reads what all pieces of the stage before wrote: a stage that starts early, runs twice or is skipped changes the values.
struct Chain {
  const std::vector<uint64_t>* in;
  std::vector<uint64_t>* out;
  std::vector<std::atomic<int32_t>>* runs;
  int32_t pieces;
  double microseconds;
};

int32_t chain_pieces(const void* args, const Run&) { return static_cast<const Chain*>(args)->pieces; }

void chain_piece(const Chain& c, const Run& run, int32_t piece) {
  (*c.runs)[static_cast<size_t>(piece)].fetch_add(1, std::memory_order_relaxed);
  uint64_t value = static_cast<uint64_t>(piece) + 1;
  for (uint64_t x : *c.in) value = value * 6364136223846793005ull + x;
  // The worker's scratch is its own while a piece runs.
  std::memset(run.worker_scratch, piece & 0xff, 4096);
  if (c.microseconds > 0) work_for(c.microseconds);
  for (int i = 0; i < 4096; i += 512) value += static_cast<uint64_t>(static_cast<unsigned char>(run.worker_scratch[i]) != (piece & 0xff));
  (*c.out)[static_cast<size_t>(piece)] = value;
}
// Every other call goes on with pieces that it takes itself.
void chain_run(const void* args, const Run& run, int32_t piece) {
  for (bool goes_on = piece % 2 == 0; piece >= 0; piece = goes_on ? run.next_piece() : -1) chain_piece(*static_cast<const Chain*>(args), run, piece);
}

struct Program {
  std::vector<std::vector<uint64_t>> values;  // [stage + 1][piece]
  std::vector<std::unique_ptr<std::vector<std::atomic<int32_t>>>> runs;
  std::vector<int32_t> pieces;

  Program(uint32_t seed, int32_t stages, int32_t most_pieces) {
    std::mt19937 random(seed);
    values.push_back({seed});
    for (int32_t i = 0; i < stages; i++) {
      pieces.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(most_pieces + 1)));
      values.emplace_back(static_cast<size_t>(pieces.back()), 0);
      runs.push_back(std::make_unique<std::vector<std::atomic<int32_t>>>(static_cast<size_t>(pieces.back())));
    }
  }
  void record(bao_handle stream, double microseconds) {
    expect_status(bao_stream_begin(stream), BAO_OK, "begin");
    for (size_t i = 0; i < pieces.size(); i++) {
      Recording r(stream, BAO_OP_COPY, "test");
      Chain c{&values[i], &values[i + 1], runs[i].get(), pieces[i], microseconds};
      r.builder().add(&c, sizeof c, chain_pieces, chain_run);
      expect_status(r.commit(), BAO_OK, "commit");
    }
    expect_status(bao_stream_end(stream), BAO_OK, "end");
  }
  uint64_t digest() const {
    uint64_t sum = 0;
    for (const auto& stage : values) {
      for (uint64_t x : stage) sum = sum * 31 + x;
    }
    return sum;
  }
  bool each_ran(int32_t times) const {
    for (const auto& stage : runs) {
      for (const auto& count : *stage) {
        if (count.load() != times) return false;
      }
    }
    return true;
  }
};

void stages_run_in_order() {
  for (uint32_t seed = 1; seed <= 12; seed++) {
    uint64_t expected = 0;
    for (int32_t threads : {1, 2, 5}) {
      Rig rig(threads);
      Program program(seed, 40, seed % 3 == 0 ? 3 : 24);
      program.record(rig.stream, seed % 4 == 0 ? 20 : 0);
      int32_t repeats = 20;
      for (int32_t i = 0; i < repeats; i++) {
        rig.fill(i % 3, 1);
        expect_status(bao_submit(rig.stream, i % 3), BAO_OK, "submit");
        int32_t status;
        // Short waits: the waiting thread comes and goes in the middle of stages.
        while ((status = bao_wait(rig.stream, i % 3, i % 2 ? 0.02 : 50)) == BAO_PENDING) {
        }
        expect_status(status, BAO_OK, "wait");
      }
      expect(program.each_ran(repeats), "seed %u, %d threads: a piece was skipped or ran twice", seed, threads);
      if (threads == 1) expected = program.digest();
      expect(program.digest() == expected, "seed %u: %d threads differ from one", seed, threads);
    }
  }
}

// As many pieces as threads, none of which ends before all have begun: each thread runs one, and it has to be its own in every stage, whoever
// came first. A thread is known by its scratch.
struct Meeting {
  std::atomic<int32_t>* begun;
  std::vector<const char*>* scratch;
  int32_t pieces;
};
void meeting_run(const void* args, const Run& run, int32_t piece) {
  const Meeting& m = *static_cast<const Meeting*>(args);
  (*m.scratch)[static_cast<size_t>(piece)] = run.worker_scratch;
  m.begun->fetch_add(1);
  for (Clock::time_point start = Clock::now(); m.begun->load() < m.pieces && milliseconds_since(start) < 5000;) std::this_thread::yield();
}

void each_thread_begins_with_its_own_piece() {
  constexpr size_t stages = 30;
  for (int32_t threads : {2, 5}) {
    Rig rig(threads);
    std::atomic<int32_t> begun[stages] = {};
    std::vector<const char*> scratch[stages];
    expect_status(bao_stream_begin(rig.stream), BAO_OK, "begin");
    for (size_t i = 0; i < stages; i++) {
      scratch[i].assign(static_cast<size_t>(threads), nullptr);
      Recording r(rig.stream, BAO_OP_COPY, "test");
      Meeting m{&begun[i], &scratch[i], threads};
      r.builder().add(&m, sizeof m, [](const void* args, const Run&) { return static_cast<const Meeting*>(args)->pieces; }, meeting_run);
      expect_status(r.commit(), BAO_OK, "commit");
    }
    expect_status(bao_stream_end(rig.stream), BAO_OK, "end");
    rig.fill(0, 1);
    expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit");
    expect_status(rig.finish(rig.stream, 0), BAO_OK, "wait");
    for (size_t i = 0; i < stages; i++) {
      expect(begun[i].load() == threads, "stage %d of %d threads: %d pieces ran", int(i), threads, begun[i].load());
      for (size_t piece = 0; piece < scratch[i].size(); piece++) {
        int64_t participant = (scratch[i][piece] - scratch[0][0]) / (1 << 20);
        expect(participant == int64_t(piece), "stage %d of %d threads: piece %d was run by participant %d", int(i), threads, int(piece), int(participant));
      }
    }
  }
}

// A stage says where it will read long before it runs. What it said may be gone or nowhere: nobody reads there on its behalf, and it is asked for no more
// than there are threads.
struct Telling {
  const uint8_t* where;
  std::atomic<int32_t>* asked;
  std::atomic<int32_t>* ran;
};
int32_t telling_pieces(const void* args, const Run& run) {
  const Telling& t = *static_cast<const Telling*>(args);
  if (run.beginnings) t.asked->fetch_add(run.beginnings_wanted <= run.threads ? 1 : 1000);
  for (int32_t i = 0; run.beginnings && i < run.beginnings_wanted; i++) run.beginnings[i] = {t.where + i * 4096, 1 << 20};
  return 7;
}
void telling_run(const void* args, const Run&, int32_t) {
  work_for(20);
  static_cast<const Telling*>(args)->ran->fetch_add(1);
}

void beginnings_are_only_hints() {
  for (int32_t threads : {1, 2, 5}) {
    Rig rig(threads);
    std::atomic<int32_t> asked{0}, ran{0};
    expect_status(bao_stream_begin(rig.stream), BAO_OK, "begin");
    for (uintptr_t where : {uintptr_t(0), uintptr_t(64), uintptr_t(0x7fff00000000), uintptr_t(64)}) {
      for (int32_t i = 0; i < 3; i++) {
        Recording r(rig.stream, BAO_OP_COPY, "test");
        Telling t{reinterpret_cast<const uint8_t*>(where), &asked, &ran};
        r.builder().add(&t, sizeof t, telling_pieces, telling_run);
        expect_status(r.commit(), BAO_OK, "commit");
      }
    }
    expect_status(bao_stream_end(rig.stream), BAO_OK, "end");
    for (int32_t i = 0; i < 20; i++) {
      rig.fill(i % 3, 1);
      expect_status(bao_submit(rig.stream, i % 3), BAO_OK, "submit");
      expect_status(rig.finish(rig.stream, i % 3), BAO_OK, "wait");
    }
    expect(ran.load() == 20 * 12 * 7, "%d threads: %d pieces ran", threads, ran.load());
    expect(threads == 1 ? asked.load() == 0 : asked.load() > 0 && asked.load() <= 20 * 12, "%d threads: asked %d times", threads, asked.load());
  }
}

void one_thread_runs_only_when_asked() {
  Rig rig(1);
  Program program(7, 1, 0);
  program.pieces = {5};
  program.values[1].assign(5, 0);
  program.runs[0] = std::make_unique<std::vector<std::atomic<int32_t>>>(5);
  program.record(rig.stream, 0);
  rig.fill(0, 1);
  expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  auto ran = [&] {
    int32_t sum = 0;
    for (auto& count : *program.runs[0]) sum += count.load();
    return sum;
  };
  expect(ran() == 0, "%d pieces ran by themselves", ran());
  for (int32_t i = 1; i <= 5; i++) {
    expect_status(bao_poll(rig.stream, 0), i < 5 ? BAO_PENDING : BAO_OK, "poll");
    expect(ran() == i, "%d pieces after %d polls", ran(), i);
  }
  expect_status(bao_poll(rig.stream, 0), BAO_OK, "poll after the end");
}

void pool_works_without_the_waiter() {
  Rig rig(3);
  Program program(5, 20, 6);
  program.record(rig.stream, 50);
  for (int i = 0; i < 50; i++) {
    rig.fill(0, 1);
    expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit");
    // Leaves at once in the middle of things; the pool must still end the job.
    if (i % 2) bao_wait(rig.stream, 0, 0);
    Clock::time_point start = Clock::now();
    while (bao_poll(rig.stream, 0) == BAO_PENDING && milliseconds_since(start) < 10000) std::this_thread::sleep_for(std::chrono::microseconds(200));
    expect_status(bao_poll(rig.stream, 0), BAO_OK, "the pool alone");
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

void timeouts_end() {
  for (int32_t threads : {1, 2, 5}) {
    Rig rig(threads);
    Program program(9, 30, 8);
    program.record(rig.stream, 500);
    rig.fill(0, 1);
    expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit");
    Clock::time_point start = Clock::now();
    expect_status(bao_wait(rig.stream, 0, 1), BAO_PENDING, "a wait of 1 ms");
    expect(milliseconds_since(start) < 2000, "a wait of 1 ms took %g ms", milliseconds_since(start));
    expect_status(bao_wait(rig.stream, 0, NAN), BAO_INVALID, "a wait of NaN");
    expect_status(bao_wait(rig.stream, 7, 1), BAO_INVALID, "slot 7");
    expect_status(bao_wait(rig.stream, 0, INFINITY), BAO_OK, "an endless wait");
    expect_status(bao_wait(rig.stream, 1, 5), BAO_OK, "a slot that was never submitted");
  }
}

// ---- cancellation, closing

void cancel_ends_one_step() {
  for (int32_t threads : {1, 2, 5}) {
    Rig rig(threads);
    bao_handle second = bao_stream_create(rig.device, rig.step);
    Program slow(11, 400, 8), quick(12, 3, 4);
    slow.record(rig.stream, 200);
    quick.record(second, 0);
    SlotView s = rig.fill(0, 1);
    int32_t serial = rig.serial;
    rig.fill(1, 1);
    expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit");
    expect_status(bao_submit(second, 0), BAO_OK, "the same step again");
    expect_status(bao_submit(second, 1), BAO_OK, "another step");
    int32_t* word = s.words(BAO_FIELD_HEADER) + BAO_HEADER_CANCEL;
    __atomic_store_n(word, serial + 1000, __ATOMIC_RELAXED);
    expect_status(bao_wait(rig.stream, 0, 2), BAO_PENDING, "another serial in the cancel word");
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      __atomic_store_n(word, serial, __ATOMIC_RELAXED);
    });
    expect_status(rig.finish(rig.stream, 0), BAO_CANCELLED, "cancelled step");
    canceller.join();
    expect(!slow.each_ran(1), "nothing was cancelled");
    expect_status(rig.finish(second, 0), BAO_CANCELLED, "what continues the cancelled step");
    expect_status(rig.finish(second, 1), BAO_OK, "the step after it");
    expect(quick.each_ran(1), "the step after it ran completely, the cancelled one not at all");
  }
}

void close_while_busy() {
  for (int32_t threads : {1, 2, 5}) {
    for (int32_t wait : {0, 1}) {
      Rig rig(threads);
      Program slow(13, 2000, 8);
      slow.record(rig.stream, 300);
      for (int32_t slot = 0; slot < 3; slot++) {
        rig.fill(slot, 1);
        expect_status(bao_submit(rig.stream, slot), BAO_OK, "submit");
      }
      if (wait) bao_wait(rig.stream, 0, 3);
      Clock::time_point start = Clock::now();
      expect_status(bao_device_close(rig.device), BAO_OK, "close");
      expect(milliseconds_since(start) < 1500, "closing took %g ms", milliseconds_since(start));
      expect_status(bao_wait(rig.stream, 0, 1), BAO_INVALID, "a stream of a closed device");
      expect(bao_step_address(rig.step, 0) == 0, "a step of a closed device has an address");
      expect_status(bao_device_close(rig.device), BAO_INVALID, "closing twice");
      rig.device = 0;
    }
  }
}

void two_streams_share_the_order() {
  for (int32_t threads : {1, 2, 5}) {
    Rig rig(threads);
    bao_handle second = bao_stream_create(rig.device, rig.step);
    Program a(21, 10, 9), b(22, 10, 9);
    a.record(rig.stream, 0);
    b.values[0] = std::vector<uint64_t>(4, 0);
    b.record(second, 0);
    for (int i = 0; i < 100; i++) {
      rig.fill(0, 1);
      rig.fill(1, 1);
      expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit a");
      expect_status(bao_submit(second, 1), BAO_OK, "submit b");
      expect_status(bao_submit(second, 1), BAO_INVALID, "a submit that was not waited for");
      expect_status(rig.finish(second, 1), BAO_OK, "wait b");
      expect(bao_poll(rig.stream, 0) == BAO_OK, "b ended before a");
    }
    expect(a.each_ran(100) && b.each_ran(100), "%d threads: a stream lost pieces", threads);
  }
}

void profile_adds_up() {
  Rig rig(2);
  Program program(31, 6, 6);
  program.record(rig.stream, 100);
  expect_status(bao_stream_profile(rig.stream, 1), BAO_OK, "profile");
  rig.fill(0, 1);
  bao_submit(rig.stream, 0);
  expect_status(rig.finish(rig.stream, 0), BAO_OK, "wait");
  expect(bao_stream_ops(rig.stream) == 6 && bao_stream_op(rig.stream, 0) == BAO_OP_COPY, "ops of the recording");
  for (int32_t i = 0; i < 6; i++) {
    bool has = program.pieces[static_cast<size_t>(i)] > 0;
    expect((bao_stream_time(rig.stream, i) > 0) == has, "op %d took %g ns", i, bao_stream_time(rig.stream, i));
  }
  expect(bao_stream_time(rig.stream, 6) == -1, "op 6 does not exist");
}
}  // namespace

int main() {
  return run({
      {"stages run in order", stages_run_in_order},
      {"each thread begins with its own piece", each_thread_begins_with_its_own_piece},
      {"beginnings are only hints", beginnings_are_only_hints},
      {"one thread runs only when asked", one_thread_runs_only_when_asked},
      {"the pool works without the waiter", pool_works_without_the_waiter},
      {"timeouts end", timeouts_end},
      {"cancel ends one step", cancel_ends_one_step},
      {"close while busy", close_while_busy},
      {"two streams share the order", two_streams_share_the_order},
      {"profile adds up", profile_adds_up},
  });
}
