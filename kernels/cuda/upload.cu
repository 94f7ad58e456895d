// Weights on their way to the device: a thread copies file pages into pinned staging while the former piece is on the bus, or becomes tiles.
#include <chrono>
#include <csignal>
#include <pthread.h>

#include "backend.cuh"
#include "units.h"

namespace bao {

Uploader::~Uploader() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    quit_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Uploader::add(const Job& job) {
  std::lock_guard<std::mutex> hold(lock_);
  if (!thread_.joinable()) {
    // Signals are for the program's own threads, those apart that a thread causes itself: a file that shrinks is met by the host library.
    sigset_t all, before;
    sigfillset(&all);
    for (int caused : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&all, caused);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw std::bad_alloc();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  jobs_.push_back(job);
  unfinished_++;
  work_.notify_one();
}

bool Uploader::wait(double timeout_ms) {
  std::unique_lock<std::mutex> hold(lock_);
  auto over = [this] { return unfinished_ == 0; };
  if (timeout_ms < 0) {
    done_.wait(hold, over);
    return true;
  }
  return done_.wait_for(hold, std::chrono::duration<double, std::milli>(timeout_ms < 1e9 ? timeout_ms : 1e9), over);
}

cudaError_t Uploader::error() {
  std::lock_guard<std::mutex> hold(lock_);
  return error_;
}

void Uploader::run() {
  cudaError_t error = cudaSetDevice(device_);
  cudaStream_t stream = nullptr;
  cudaEvent_t copied[2] = {};
  char *staging[2] = {}, *raw[2] = {};  // raw: a piece of a file on the device, until it has become tiles
  auto check = [&error](cudaError_t now) {
    if (error == cudaSuccess) error = now;
  };
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 2; i++) {
    check(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming));
    check(cudaMallocHost(&staging[i], size_t(staging_bytes)));
    check(cudaMalloc(&raw[i], size_t(staging_bytes)));
  }
  int turn = 0;
  std::unique_lock<std::mutex> hold(lock_);
  for (;;) {
    work_.wait(hold, [this] { return quit_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    int64_t taken = int64_t(jobs_.size());
    std::deque<Job> jobs;
    jobs.swap(jobs_);
    hold.unlock();
    // Small tensors share a piece of staging; the copies of a piece are in order, so one event tells that it may be filled again.
    int64_t used = 0;
    auto flush = [&] {
      check(cudaEventRecord(copied[turn], stream));
      turn ^= 1;
      check(cudaEventSynchronize(copied[turn]));
      used = 0;
    };
    // A piece as large as fits, in units of `unit` bytes: to its place, or to the raw buffer.
    auto send = [&](const uint8_t* source, int64_t bytes, int64_t unit, char* to) {
      if (staging_bytes - used < unit) flush();
      int64_t piece = std::min(bytes, (staging_bytes - used) / unit * unit);
      std::memcpy(staging[turn] + used, source, size_t(piece));
      check(cudaMemcpyAsync(to ? to : raw[turn] + used, staging[turn] + used, size_t(piece), cudaMemcpyHostToDevice, stream));
      return piece;
    };
    auto advance = [&](int64_t piece) { used = std::min((used + piece + 255) / 256 * 256, staging_bytes); };
    for (const Job& job : jobs) {
      if (job.rows == 0) {
        for (int64_t at = 0; at < job.bytes && error == cudaSuccess;) {
          int64_t piece = send(job.source + at, job.bytes - at, 1, job.destination + at);
          advance(piece);
          at += piece;
        }
        continue;
      }
      int64_t unit = job.row_bytes * tile_rows;
      for (int64_t run = 0; run < job.runs; run++) {
        for (int64_t at = 0; at < job.bytes && error == cudaSuccess;) {
          int64_t piece = send(job.source + run * job.bytes + at, job.bytes - at, std::min(unit, job.bytes - at), nullptr);
          launch_relay(job.dtype, reinterpret_cast<const uint8_t*>(raw[turn]) + used, job.row_bytes, int32_t(piece / job.row_bytes), job.columns,
                       job.destination + run * job.run_bytes + at / unit * job.tile_bytes, stream);
          check(cudaGetLastError());
          advance(piece);
          at += piece;
        }
      }
    }
    flush();
    check(cudaStreamSynchronize(stream));
    hold.lock();
    error_ = error;
    unfinished_ -= taken;
    done_.notify_all();
  }
  hold.unlock();
  for (int i = 0; i < 2; i++) {
    if (copied[i]) cudaEventDestroy(copied[i]);
    if (staging[i]) cudaFreeHost(staging[i]);
    if (raw[i]) cudaFree(raw[i]);
  }
  if (stream) cudaStreamDestroy(stream);
}

}  // namespace bao
