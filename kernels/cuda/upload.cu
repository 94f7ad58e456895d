// Weights on their way to the device: a thread copies file pages into pinned staging while the former piece is on the bus.
#include <chrono>
#include <csignal>
#include <pthread.h>

#include "backend.cuh"

namespace bao {

Uploader::~Uploader() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    quit_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Uploader::add(char* destination, const uint8_t* source, int64_t bytes) {
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
  jobs_.push_back(Job{destination, source, bytes});
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
  char* staging[2] = {};
  auto check = [&error](cudaError_t now) {
    if (error == cudaSuccess) error = now;
  };
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 2; i++) {
    check(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming));
    check(cudaMallocHost(&staging[i], size_t(staging_bytes)));
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
    for (const Job& job : jobs) {
      for (int64_t at = 0; at < job.bytes && error == cudaSuccess;) {
        if (used == staging_bytes) flush();
        int64_t piece = std::min(job.bytes - at, staging_bytes - used);
        std::memcpy(staging[turn] + used, job.source + at, size_t(piece));
        check(cudaMemcpyAsync(job.destination + at, staging[turn] + used, size_t(piece), cudaMemcpyHostToDevice, stream));
        at += piece;
        used += piece;
        if (used < staging_bytes) used = std::min((used + 255) / 256 * 256, staging_bytes);
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
  }
  if (stream) cudaStreamDestroy(stream);
}

}  // namespace bao
