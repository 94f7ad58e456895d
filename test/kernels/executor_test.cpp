// The executor and everything around it that is no op: order of stages, timeouts, cancellation, closing while busy, stale handles, and slots
// filled with nonsense. Worth running under -fsanitize=thread and -fsanitize=address; never measures time except to prove that a wait ends.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../../kernels/cpu/core.h"
#include "../../kernels/host.h"

using namespace bao;

namespace {

int failures = 0;

template <class... Args>
void expect(bool holds, const char* format, Args... args) {
  if (holds) return;
  failures++;
  std::printf("FAIL ");
  std::printf(format, args...);
  std::printf("  [last error: %s]\n", bao_last_error());
}

void expect_status(int32_t found, int32_t expected, const char* what) {
  expect((found & 0xff) == expected, "%s: %s, expected %s", what, bao_status_name(found), bao_status_name(expected));
}

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

void work_for(double microseconds) {
  Clock::time_point start = Clock::now();
  while (milliseconds_since(start) * 1000 < microseconds) {
  }
}

struct SlotView {
  int32_t* base;
  bao_handle step;
  int32_t* words(int32_t field) const { return base + static_cast<int64_t>(bao_step_field(step, field)) / 4; }
};

// A device with a step block of two tables and one stream.
struct Rig {
  bao_handle device, step, stream;
  int32_t serial = 0;
  explicit Rig(int32_t threads, int32_t flags = 0) {
    device = bao_device_open(0, threads, BAO_ISA_AUTO, BAO_EXACT, flags);
    step = bao_step_create(device, 3, 16, 8, 4, 100, 8, 4, 2, 0, 0);
    stream = bao_stream_create(device, step);
    expect(device != 0 && step != 0 && stream != 0, "rig of %d threads", threads);
  }
  ~Rig() {
    if (device) bao_device_close(device);
  }
  SlotView slot(int32_t number) const { return {reinterpret_cast<int32_t*>(static_cast<uintptr_t>(bao_step_address(step, number))), step}; }
  // A slot of `rows` rows of sequence 0 from position 0, without outputs.
  SlotView fill(int32_t number, int32_t rows) {
    SlotView s = slot(number);
    std::memset(s.base, 0, static_cast<size_t>(bao_step_field(step, BAO_FIELD_END)));
    s.words(BAO_FIELD_HEADER)[BAO_HEADER_ROWS] = rows;
    s.words(BAO_FIELD_HEADER)[BAO_HEADER_SERIAL] = ++serial;
    for (int32_t r = 0; r < rows; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = r;
    return s;
  }
  int32_t finish(bao_handle which, int32_t number) const {
    int32_t status;
    while ((status = bao_wait(which, number, 20)) == BAO_PENDING) {
    }
    return status;
  }
};

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

// ---- objects

void handles_go_stale() {
  Rig rig(2);
  bao_handle buffer = bao_buffer_create(rig.device, 4096, BAO_BUFFER_HOST_VISIBLE);
  bao_handle x = bao_view_create(buffer, 0, BAO_F32, BAO_ROWS_STEP, 4, 1, 8, 0), y = bao_view_create(buffer, 1024, BAO_F32, BAO_ROWS_STEP, 4, 1, 8, 0);
  expect_status(bao_copy(rig.stream, y, x), BAO_INVALID, "an op outside a recording");
  bao_stream_begin(rig.stream);
  expect_status(bao_copy(rig.stream, y, x), BAO_OK, "copy");
  expect_status(bao_copy(rig.stream, y, buffer), BAO_INVALID, "a buffer for a view");
  expect_status(bao_copy(rig.stream, y, 0), BAO_INVALID, "no operand");
  expect_status(bao_copy(rig.stream, y, NAN), BAO_INVALID, "NaN");
  expect_status(bao_copy(rig.stream, y, 1e300), BAO_INVALID, "a huge handle");
  expect_status(bao_copy(rig.stream, y, x + 0.5), BAO_INVALID, "half a handle");
  expect_status(bao_copy(rig.stream, y, -x), BAO_INVALID, "a negative handle");
  expect(bao_last_status() == (BAO_INVALID | 3 << 8), "the last status is %d", bao_last_status());
  bao_stream_end(rig.stream);
  expect(bao_stream_ops(rig.stream) == 1, "failed ops stayed in the recording: %d ops", bao_stream_ops(rig.stream));
  rig.fill(0, 4);
  float* data = reinterpret_cast<float*>(static_cast<uintptr_t>(bao_buffer_address(buffer)));
  for (int i = 0; i < 32; i++) data[i] = static_cast<float>(i);
  expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit");
  expect_status(rig.finish(rig.stream, 0), BAO_OK, "wait");
  expect(data[256 + 31] == 31, "copied %g", static_cast<double>(data[256 + 31]));
  rig.fill(0, 5);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "more rows than a view holds");
  rig.fill(0, 4);
  expect_status(bao_buffer_free(buffer), BAO_OK, "free");
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "a recording that names a freed buffer");
  expect_status(bao_buffer_free(buffer), BAO_INVALID, "free twice");
  bao_stream_begin(rig.stream);
  expect_status(bao_copy(rig.stream, y, x), BAO_INVALID, "a view of a freed buffer");
  bao_handle first = 0;
  for (int i = 0; i < 5000; i++) {
    bao_handle next = bao_buffer_create(rig.device, 1, 0);
    expect(next != 0 && next != first && next < 2147483648.0, "handle %g", next);
    expect_status(bao_buffer_free(next), BAO_OK, "free");
    expect(bao_buffer_address(next) == 0, "a freed buffer has an address");
    first = next;
  }
  expect_status(bao_step_free(rig.step), BAO_OK, "free the step");
  expect_status(bao_stream_begin(rig.stream), BAO_INVALID, "a stream without its step");
  expect_status(bao_stream_free(rig.stream), BAO_OK, "free the stream");
}

void sizes_are_checked() {
  Rig rig(1);
  for (double bytes : {0.0, -1.0, 1.5, double(NAN), double(INFINITY), 1e30}) expect(bao_buffer_create(rig.device, bytes, 0) == 0, "a buffer of %g bytes", bytes);
  expect(bao_buffer_create(rig.device, 9007199254740992.0, 0) == 0 && (bao_last_status() & 0xff) == BAO_OUT_OF_MEMORY, "a buffer of 2^53 bytes");
  bao_handle buffer = bao_buffer_create(rig.device, 1000, 0);
  const int32_t huge = INT32_MAX;
  expect(bao_view_create(buffer, 0, BAO_F32, 0, 10, 5, 5, 0) != 0, "a view that fits exactly");
  expect(bao_view_create(buffer, 4, BAO_F32, 0, 10, 5, 5, 0) == 0, "a view that ends 4 bytes late");
  expect(bao_view_create(buffer, 2, BAO_F32, 0, 1, 1, 1, 0) == 0, "an unaligned view");
  expect(bao_view_create(buffer, 0, BAO_F32, 0, huge, huge, huge, 0) == 0, "a view of 2^93 elements");
  expect(bao_view_create(buffer, 0, BAO_F32, 0, huge, 1, 1, 9007199254740988.0) == 0, "a view with a huge stride");
  expect(bao_view_create(buffer, 0, BAO_F16, 0, 1, 1, 1, 0) == 0, "a view of F16");
  expect(bao_view_create(buffer, 0, BAO_F32, 3, 1, 1, 1, 0) == 0, "a view with rows of kind 3");
  float number = 0;
  expect_status(bao_buffer_write(buffer, 996, &number, 4), BAO_OK, "the last four bytes");
  expect_status(bao_buffer_write(buffer, 997, &number, 4), BAO_INVALID, "one byte beyond");
  expect_status(bao_buffer_read(buffer, 0, nullptr, 4), BAO_INVALID, "to nowhere");
  expect(bao_step_create(rig.device, 9, 1, 1, 1, 1, 0, 1, 0, 0, 0) == 0, "nine slots");
  expect(bao_step_create(rig.device, 1, 1, 1, 65536, 1, 0, huge, 0, 0, 0) == 0, "a huge page table");
  expect(bao_device_open(0, 1, BAO_ISA_NEON + 1, 0, 0) == 0 && bao_device_open(1, 1, 0, 0, 0) == 0 && bao_device_open(0, -1, 0, 0, 0) == 0, "bad devices");
  expect(bao_file_open("\xff\xfe/none") == 0 && std::strstr(bao_last_error(), "??" "/none"), "a path that is no UTF-8");
}

void pools_hold_pages() {
  Rig rig(1);
  for (int32_t dtype : {BAO_F32, BAO_F16, BAO_Q8_0}) {
    bao_handle pool = bao_kv_pool_create(rig.device, 0, 3, 2, 64, dtype, BAO_KV_PLAIN, 0, 1000000);
    expect(pool != 0, "pool of type %d", dtype);
    double bytes = bao_kv_page_bytes(pool), plane = dtype == BAO_F32 ? 64 * 64 * 4 : dtype == BAO_F16 ? 64 * 64 * 2 : 64 * 64 + 64 * 2 * 4;
    expect(bytes == plane * 2 * 2 * 3, "a page of type %d has %g bytes", dtype, bytes);
    std::vector<char> page(static_cast<size_t>(bytes)), back(page.size());
    for (size_t i = 0; i < page.size(); i++) page[i] = static_cast<char>(i * 7 + 1);
    expect_status(bao_kv_page_write(pool, 0, page.data(), bytes), BAO_INVALID, "a page without memory");
    expect_status(bao_kv_pool_commit(pool, 3), BAO_OK, "commit");
    expect_status(bao_kv_pool_commit(pool, 1), BAO_OK, "commit fewer");
    expect_status(bao_kv_page_write(pool, 2, page.data(), bytes), BAO_OK, "write");
    expect_status(bao_kv_page_write(pool, 2, page.data(), bytes - 1), BAO_INVALID, "write less");
    expect_status(bao_kv_page_copy(pool, 1, 2, 64), BAO_OK, "copy");
    expect_status(bao_kv_page_copy(pool, 0, 2, 1), BAO_OK, "copy one token");
    expect_status(bao_kv_page_copy(pool, 3, 2, 1), BAO_INVALID, "copy to a page without memory");
    expect_status(bao_kv_page_read(pool, 1, back.data(), bytes), BAO_OK, "read");
    expect(page == back, "a copied page of type %d differs", dtype);
    expect_status(bao_kv_page_read(pool, 0, back.data(), bytes), BAO_OK, "read");
    size_t token = dtype == BAO_F32 ? 256 : dtype == BAO_F16 ? 128 : 64;
    expect(std::equal(back.begin(), back.begin() + static_cast<ptrdiff_t>(token), page.begin()) && back[token] == 0, "one token of type %d", dtype);
    expect_status(bao_kv_pool_commit(pool, 1000000), BAO_OUT_OF_MEMORY, "more than there is");
    expect_status(bao_kv_page_read(pool, 2, back.data(), bytes), BAO_OK, "read after a refused commit");
    expect(page == back, "a refused commit changed a page");
    expect_status(bao_kv_pool_free(pool), BAO_OK, "free");
  }
  expect(bao_memory(rig.device, BAO_MEMORY_KV) == 0, "%g bytes of KV memory are left", bao_memory(rig.device, BAO_MEMORY_KV));
}

// ---- slots

// A small model's worth of ops over real memory: what a wrong slot could make read out of bounds.
struct Model {
  bao_handle pool0, pool1, embedding, map, file;
  std::string path = "/tmp/bao_executor_test_XXXXXX";
  explicit Model(Rig& rig) {
    int descriptor = mkstemp(path.data());
    std::vector<float> table(100 * 16);
    for (size_t i = 0; i < table.size(); i++) table[i] = static_cast<float>(i % 13) - 6;
    if (write(descriptor, table.data(), table.size() * 4) != static_cast<ssize_t>(table.size() * 4)) std::abort();
    close(descriptor);
    file = bao_file_open(path.c_str());
    map = bao_map_create(rig.device, bao_file_address(file), bao_file_bytes(file));
    embedding = bao_weight_create(rig.device, map, 0, BAO_F32, 100, 16, 1, BAO_USE_ROWS | BAO_USE_MATMUL);
    expect(bao_weight_create(rig.device, map, 64, BAO_F32, 100, 16, 1, BAO_USE_ROWS) == 0, "a weight that leaves its map");
    expect(bao_map_create(rig.device, bao_file_address(file) - 4096, 100) == 0, "a map outside every file");
    expect_status(bao_map_free(map), BAO_INVALID, "a map with weights");
    expect_status(bao_file_close(file), BAO_OK, "the map keeps the pages of a closed file");
    pool0 = bao_kv_pool_create(rig.device, 0, 1, 1, 16, BAO_F32, 0, 0, 64);
    pool1 = bao_kv_pool_create(rig.device, 1, 1, 1, 16, BAO_F16, 0, 0, 64);
    bao_kv_pool_commit(pool0, 8);
    bao_kv_pool_commit(pool1, 8);
    bao_handle buffer = bao_buffer_create(rig.device, 65536, BAO_BUFFER_HOST_VISIBLE);
    bao_handle x = bao_view_create(buffer, 0, BAO_F32, BAO_ROWS_STEP, 16, 1, 16, 0), y = bao_view_create(buffer, 4096, BAO_F32, BAO_ROWS_STEP, 16, 1, 16, 0);
    bao_handle z = bao_view_create(buffer, 8192, BAO_F32, BAO_ROWS_OUTPUT, 8, 1, 16, 0), logits = bao_view_create(buffer, 16384, BAO_F32, BAO_ROWS_OUTPUT, 8, 1, 100, 0);
    expect_status(bao_stream_begin(rig.stream), BAO_OK, "begin");
    expect_status(bao_embed(rig.stream, x, embedding, 1), BAO_OK, "embed");
    expect_status(bao_kv_append(rig.stream, pool0, 0, x, x), BAO_OK, "append");
    expect_status(bao_kv_append(rig.stream, pool1, 0, x, x), BAO_OK, "append");
    expect_status(bao_attention(rig.stream, y, x, pool0, 0, 0, 1), BAO_OK, "attention");
    expect_status(bao_attention(rig.stream, y, x, pool1, 0, 32, 1), BAO_OK, "sliding attention");
    expect_status(bao_gather_rows(rig.stream, z, y), BAO_OK, "gather");
    expect_status(bao_matmul(rig.stream, logits, z, embedding), BAO_OK, "logits");
    expect_status(bao_logits_process(rig.stream, logits, 0), BAO_OK, "process");
    expect_status(bao_logprobs(rig.stream, logits), BAO_OK, "logprobs");
    expect_status(bao_sample(rig.stream, logits), BAO_OK, "sample");
    expect_status(bao_stream_end(rig.stream), BAO_OK, "end");
  }
  ~Model() { unlink(path.c_str()); }
};

void set_f32(int32_t* word, float value) { std::memcpy(word, &value, sizeof value); }

// Sequence 1: three prefill rows, pages set, one sampled output.
SlotView good_slot(Rig& rig, int32_t number) {
  SlotView s = rig.fill(number, 3);
  int32_t* header = s.words(BAO_FIELD_HEADER);
  header[BAO_HEADER_OUTPUTS] = 1;
  header[BAO_HEADER_PAGE_DELTAS] = 2;
  header[BAO_HEADER_SEQUENCE_DELTAS] = 1;
  for (int r = 0; r < 3; r++) {
    s.words(BAO_FIELD_ROW_SEQUENCE)[r] = 1;
    s.words(BAO_FIELD_ROW_ID)[r] = 10 + r;
  }
  s.words(BAO_FIELD_OUTPUT_ROW)[0] = 2;
  int32_t* sampler = s.words(BAO_FIELD_OUTPUT_SAMPLER);
  set_f32(sampler + BAO_SAMPLER_TEMPERATURE, 0.5f);
  set_f32(sampler + BAO_SAMPLER_TOP_P, 0.9f);
  set_f32(sampler + BAO_SAMPLER_REPETITION, 1);
  sampler[BAO_SAMPLER_TOP_LOGPROBS] = 2;
  sampler[BAO_SAMPLER_BIAS_COUNT] = 1;
  s.words(BAO_FIELD_BIAS)[0] = 5;
  const int32_t deltas[8] = {0, 1, 0, 3, 1, 1, 0, 4};
  std::copy(deltas, deltas + 8, s.words(BAO_FIELD_PAGE_DELTA));
  const int32_t sequence[7] = {1, 3, -1, 3, 10, 11, 12};
  std::copy(sequence, sequence + 7, s.words(BAO_FIELD_SEQUENCE_DELTA));
  return s;
}

// A decode row of sequence 1 that follows the device region.
SlotView decode_slot(Rig& rig, int32_t number) {
  SlotView s = good_slot(rig, number);
  int32_t* header = s.words(BAO_FIELD_HEADER);
  header[BAO_HEADER_ROWS] = 1;
  header[BAO_HEADER_PAGE_DELTAS] = header[BAO_HEADER_SEQUENCE_DELTAS] = 0;
  s.words(BAO_FIELD_ROW_ID)[0] = s.words(BAO_FIELD_ROW_POSITION)[0] = -1;
  s.words(BAO_FIELD_OUTPUT_ROW)[0] = 0;
  return s;
}

void bad_slots_are_refused() {
  Rig rig(2);
  Model model(rig);
  decode_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "a decode row without pages");
  using Change = std::function<void(SlotView)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"serial 0", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_SERIAL] = 0; }},
      {"17 rows", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_ROWS] = 17; }},
      {"-1 rows", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_ROWS] = -1; }},
      {"4 outputs of 3 rows", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_OUTPUTS] = 4; }},
      {"too many page deltas", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_PAGE_DELTAS] = 100000; }},
      {"too many sequence deltas", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_SEQUENCE_DELTAS] = 5; }},
      {"sequence 4", [](SlotView s) { s.words(BAO_FIELD_ROW_SEQUENCE)[2] = 4; }},
      {"sequence -1", [](SlotView s) { s.words(BAO_FIELD_ROW_SEQUENCE)[0] = -1; }},
      {"rows of a sequence apart", [](SlotView s) { s.words(BAO_FIELD_ROW_SEQUENCE)[1] = 0; }},
      {"id 100", [](SlotView s) { s.words(BAO_FIELD_ROW_ID)[1] = 100; }},
      {"id -2", [](SlotView s) { s.words(BAO_FIELD_ROW_ID)[1] = -2; }},
      {"id -1 at a position", [](SlotView s) { s.words(BAO_FIELD_ROW_ID)[1] = -1; }},
      {"a gap of positions", [](SlotView s) { s.words(BAO_FIELD_ROW_POSITION)[2] = 3; }},
      {"positions in reverse", [](SlotView s) { s.words(BAO_FIELD_ROW_POSITION)[0] = 2; }},
      {"position beyond the table", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = 255 + r; }},
      {"a position without a page", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = 62 + r; }},
      {"a huge position", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = INT32_MAX - 2 + r; }},
      {"two -1 rows", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = s.words(BAO_FIELD_ROW_ID)[r] = -1; }},
      {"delta of table 2", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[0] = 2; }},
      {"delta of table -1", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[0] = -1; }},
      {"delta of sequence 4", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[1] = 4; }},
      {"delta of index 4", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[2] = 4; }},
      {"delta to page -2", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[3] = -2; }},
      {"delta to a page without memory", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[3] = 8; }},
      {"delta that unsets a needed page", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[7] = -1; }},
      {"the same delta twice", [](SlotView s) { std::copy_n(s.words(BAO_FIELD_PAGE_DELTA), 3, s.words(BAO_FIELD_PAGE_DELTA) + 4); }},
      {"sequence delta of 65 ids", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[3] = 65; }},
      {"sequence delta with id 100", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[5] = 100; }},
      {"sequence delta with next id 100", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[2] = 100; }},
      {"sequence delta with length -1", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[1] = -1; }},
      {"sequence delta of sequence 4", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[0] = 4; }},
      {"output of row 3", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_ROW)[0] = 3; }},
      {"output that is not the last row", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_ROW)[0] = 1; }},
      {"temperature NaN", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_TEMPERATURE, NAN); }},
      {"temperature -1", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_TEMPERATURE, -1); }},
      {"top-k -1", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_TOP_K] = -1; }},
      {"top-p 0", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_TOP_P, 0); }},
      {"min-p 2", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_MIN_P, 2); }},
      {"repetition 0", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_REPETITION, 0); }},
      {"presence infinite", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_PRESENCE, INFINITY); }},
      {"21 log-probabilities", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_TOP_LOGPROBS] = 21; }},
      {"flag 4", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_FLAGS] = 4; }},
      {"bias beyond the field", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_BIAS_START] = 8; }},
      {"bias that overflows", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_BIAS_START] = INT32_MAX; }},
      {"bias of id 100", [](SlotView s) { s.words(BAO_FIELD_BIAS)[0] = 100; }},
      {"bias of +infinity", [](SlotView s) { set_f32(s.words(BAO_FIELD_BIAS) + 1, INFINITY); }},
  };
  for (const auto& [what, change] : changes) {
    change(good_slot(rig, 0));
    expect_status(bao_submit(rig.stream, 0), BAO_INVALID, what);
  }
  decode_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "a refused submit applied its deltas");
  good_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_OK, "a good slot");
  expect_status(rig.finish(rig.stream, 0), BAO_OK, "a good slot runs");
  // 61 decode steps fill the page of 64 tokens; the 62nd needs a page that is not set.
  int32_t last = rig.slot(0).words(BAO_FIELD_RESULT)[BAO_RESULT_ID];
  expect(last >= 0 && last < 100, "sampled %d", last);
  for (int i = 0; i < 61; i++) {
    decode_slot(rig, i % 3);
    expect_status(bao_submit(rig.stream, i % 3), BAO_OK, "decode");
    expect_status(rig.finish(rig.stream, i % 3), BAO_OK, "decode runs");
  }
  decode_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "decode beyond the last page");
}

// Slots of random words, most of them near the valid ranges: whatever is accepted must run inside its memory.
void random_slots(int32_t flags) {
  std::mt19937 random(99);
  int accepted = 0, refused = 0;
  Rig rig(3, flags);
  Model model(rig);
  for (int i = 0; i < 6000; i++) {
    int32_t number = i % 3;
    bao_wait(rig.stream, number, 1e9);
    SlotView s = random() % 3 ? decode_slot(rig, number) : good_slot(rig, number);
    if (random() % 2) {
      int32_t page = static_cast<int32_t>(random() % 9) - 1;
      const int32_t deltas[8] = {0, static_cast<int32_t>(random() % 4), static_cast<int32_t>(random() % 4), page, 1, static_cast<int32_t>(random() % 4), static_cast<int32_t>(random() % 2), page};
      s.words(BAO_FIELD_HEADER)[BAO_HEADER_PAGE_DELTAS] = 2;
      std::copy(deltas, deltas + 8, s.words(BAO_FIELD_PAGE_DELTA));
    }
    for (uint32_t changes = random() % 4; changes > 0; changes--) {
      static const int32_t fields[] = {BAO_FIELD_HEADER, BAO_FIELD_ROW_SEQUENCE, BAO_FIELD_ROW_ID, BAO_FIELD_ROW_POSITION, BAO_FIELD_OUTPUT_ROW, BAO_FIELD_OUTPUT_SAMPLER, BAO_FIELD_PAGE_DELTA, BAO_FIELD_SEQUENCE_DELTA, BAO_FIELD_BIAS};
      int32_t* word = s.words(fields[random() % 9]) + random() % 6;
      if (word == s.words(BAO_FIELD_HEADER) + BAO_HEADER_SERIAL) continue;
      switch (random() % 4) {
        case 0: *word = static_cast<int32_t>(random()); break;
        case 1: *word = static_cast<int32_t>(random() % 5) - 1; break;
        case 2: *word ^= 1 << random() % 32; break;
        default: *word += static_cast<int32_t>(random() % 3) - 1; break;
      }
    }
    int32_t status = bao_submit(rig.stream, number);
    (status == BAO_OK ? accepted : refused)++;
    if (status != BAO_OK) expect_status(status, BAO_INVALID, "a random slot");
  }
  expect(accepted > 500 && refused > 500, "%d accepted, %d refused: one side is hardly tested", accepted, refused);
}

void random_slots_are_harmless() {
  random_slots(0);
  random_slots(BAO_OPEN_REFERENCE);
}

}  // namespace

int main() {
  const std::pair<const char*, void (*)()> tests[] = {
      {"stages run in order", stages_run_in_order},
      {"one thread runs only when asked", one_thread_runs_only_when_asked},
      {"the pool works without the waiter", pool_works_without_the_waiter},
      {"timeouts end", timeouts_end},
      {"cancel ends one step", cancel_ends_one_step},
      {"close while busy", close_while_busy},
      {"two streams share the order", two_streams_share_the_order},
      {"profile adds up", profile_adds_up},
      {"handles go stale", handles_go_stale},
      {"sizes are checked", sizes_are_checked},
      {"pools hold pages", pools_hold_pages},
      {"bad slots are refused", bad_slots_are_refused},
      {"random slots are harmless", random_slots_are_harmless},
  };
  for (const auto& [name, test] : tests) {
    int before = failures;
    Clock::time_point start = Clock::now();
    test();
    std::printf("%s %s (%.0f ms)\n", failures == before ? "ok  " : "FAIL", name, milliseconds_since(start));
    std::fflush(stdout);
  }
  return failures == 0 ? 0 : 1;
}
