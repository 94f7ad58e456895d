// Weight registration with any numbers, and ops over whatever was accepted: a weight made of arbitrary bytes is read inside its file or refused.
// The input is a list of numbers for the arguments, then the bytes of the file. libFuzzer, or -DBAO_FUZZ_MAIN: RUNS [SEED] random inputs.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <unistd.h>
#include <vector>

#include "../../kernels/host.h"

namespace {

struct Reader {
  const uint8_t* data;
  size_t size;
  uint8_t byte() { return size == 0 ? 0 : (size--, *data++); }
  uint64_t word() {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v = v << 8 | byte();
    return v;
  }
  // Small numbers most of the time, any double now and then.
  double number(double likely) {
    switch (byte() & 7) {
      case 0: { uint64_t w = word(); double d; std::memcpy(&d, &w, 8); return d; }
      case 1: return double(int64_t(word()));
      case 2: return -double(byte());
      default: return std::floor(byte() / 255.0 * likely);
    }
  }
  int32_t integer(int32_t likely) {
    switch (byte() & 7) {
      case 0: return int32_t(word());
      case 1: return -int32_t(byte());
      default: return byte() % (likely + 1);
    }
  }
};

const int32_t DTYPES[] = {BAO_F32, BAO_F16, BAO_Q4_0, BAO_Q4_1, BAO_Q5_0, BAO_Q5_1, BAO_Q8_0, BAO_Q2_K, BAO_Q3_K, BAO_Q4_K, BAO_Q5_K, BAO_Q6_K, BAO_IQ4_NL, BAO_IQ4_XS, BAO_BF16, BAO_MXFP4, BAO_NVFP4};

void run(const uint8_t* data, size_t size) {
  if (size < 64) return;
  Reader in{data, size};
  static bao_handle devices[2] = {bao_device_open(0, 1, BAO_ISA_AUTO, BAO_FAST, 0), bao_device_open(0, 1, BAO_ISA_AUTO, BAO_EXACT, BAO_OPEN_REFERENCE)};
  bao_handle device = devices[in.byte() & 1];
  int32_t dtype = in.byte() & 8 ? int32_t(int8_t(in.byte())) : DTYPES[in.byte() % 17];
  int32_t columns = int32_t(32u * uint32_t(in.integer(16))), rows = in.integer(9), experts = in.integer(3), use = in.integer(15);
  double offset = in.number(64.0);

  char path[] = "/tmp/bao_fuzz_XXXXXX";
  int fd = mkstemp(path);
  if (fd < 0) return;
  // The rest of the input, repeated, as the file: large enough for small weights and too small for others.
  std::vector<uint8_t> bytes;
  size_t wanted = 64 + size_t(in.byte()) * 64;
  while (bytes.size() < wanted) bytes.insert(bytes.end(), in.data, in.data + (in.size ? in.size : 0)), bytes.push_back(7);
  if (write(fd, bytes.data(), bytes.size()) != ssize_t(bytes.size())) std::abort();
  close(fd);
  bao_handle file = bao_file_open(path);
  unlink(path);
  if (file == 0) std::abort();
  bao_handle map = bao_map_create(device, bao_file_address(file), bao_file_bytes(file));
  if (map == 0) std::abort();
  bao_handle weight = bao_weight_create(device, map, offset, dtype, rows, columns, experts, use);
  if (weight != 0) {
    const int n = 3;
    bao_handle step = bao_step_create(device, 1, n, n, 1, rows > 0 ? rows : 1, 1, 1, 0, 0, 0);
    bao_handle x = bao_buffer_create(device, double(n) * columns * 4.0, BAO_BUFFER_HOST_VISIBLE), y = bao_buffer_create(device, n * 4.0 * (rows > columns ? rows : columns) * 4, BAO_BUFFER_HOST_VISIBLE);
    for (int i = 0; i < n * columns; i++) reinterpret_cast<float*>(intptr_t(bao_buffer_address(x)))[i] = float(i % 7) - 3.0f;
    bao_handle vx = bao_view_create(x, 0, BAO_F32, BAO_ROWS_STEP, n, 1, columns, 0), vy = bao_view_create(y, 0, BAO_F32, BAO_ROWS_STEP, n, 1, rows, 0), ve = bao_view_create(y, 0, BAO_F32, BAO_ROWS_STEP, n, 1, columns, 0);
    bao_handle stream = bao_stream_create(device, step);
    bao_stream_begin(stream);
    bao_matmul(stream, vy, vx, weight);
    bao_embed(stream, ve, weight, 1.0f);
    bao_rms_norm(stream, vx, vx, weight, 1e-6f, 1.0f);
    bao_stream_end(stream);
    char* slot = reinterpret_cast<char*>(intptr_t(bao_step_address(step, 0)));
    auto field = [&](int f) { return reinterpret_cast<int32_t*>(slot + int64_t(bao_step_field(step, f))); };
    int32_t* header = field(BAO_FIELD_HEADER);
    header[BAO_HEADER_ROWS] = n;
    header[BAO_HEADER_SERIAL] = 1;
    header[BAO_HEADER_PAGE_DELTAS] = 1;
    int32_t delta[4] = {0, 0, 0, 0};
    std::memcpy(field(BAO_FIELD_PAGE_DELTA), delta, sizeof delta);
    for (int i = 0; i < n; i++) field(BAO_FIELD_ROW_SEQUENCE)[i] = 0, field(BAO_FIELD_ROW_ID)[i] = i % (rows > 0 ? rows : 1), field(BAO_FIELD_ROW_POSITION)[i] = i;
    if (bao_submit(stream, 0) == BAO_OK) while (bao_wait(stream, 0, 1000) == BAO_PENDING) {}
    for (bao_handle v : {vx, vy, ve}) bao_view_free(v);
    bao_stream_free(stream);
    bao_buffer_free(x);
    bao_buffer_free(y);
    bao_step_free(step);
    bao_weight_free(weight);
  }
  bao_map_free(map);
  bao_file_close(file);
}

}  // namespace

#ifdef BAO_FUZZ_MAIN
int main(int argc, char** argv) {
  long runs = argc > 1 ? std::atol(argv[1]) : 2000;
  std::mt19937 random(argc > 2 ? unsigned(std::atol(argv[2])) : 1u);
  for (long i = 0; i < runs; i++) {
    std::vector<uint8_t> input(64 + random() % 1024);
    for (auto& b : input) b = uint8_t(random());
    run(input.data(), input.size());
  }
  std::printf("%ld inputs\n", runs);
}
#else
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  run(data, size);
  return 0;
}
#endif
