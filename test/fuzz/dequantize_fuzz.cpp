// Any bytes, read as any type, at any alignment: dequantising, its statistics and quantising the result again stay inside their buffers.
// libFuzzer: clang++ -fsanitize=fuzzer,address,undefined. Alone: -DBAO_FUZZ_MAIN, then RUNS [SEED] random inputs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../../kernels/cpu/dequantize.h"
#include "../../kernels/cpu/quantize.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "dequantize_fuzz: %s\n", what);
  std::abort();
}

// The input's first byte is the type, its second the displacement of the source. Buffers have their exact sizes, so that the sanitizer
// sees a read or write of one byte too many.
void run(const uint8_t* input, size_t size) {
  if (size < 2) return;
  const int dtype = static_cast<int8_t>(input[0]);
  const size_t displacement = input[1] & 7;
  input += 2;
  size -= 2;

  const int elements = bao::block_elements(dtype);
  if (elements == 0) {
    float none = 0.0f;
    require(bao::row_bytes(dtype, 256) == 0, "an unknown type has a size");
    require(!bao::dequantize_row(dtype, input, &none, 256), "an unknown type is read");
    return;
  }
  const int64_t n = static_cast<int64_t>(size / static_cast<size_t>(bao::block_bytes(dtype))) * elements;
  const int64_t bytes = bao::row_bytes(dtype, n);
  if (n == 0) {
    require(bytes == 0, "an empty row has a size");
    return;
  }

  std::unique_ptr<uint8_t[]> held(new uint8_t[displacement + static_cast<size_t>(bytes)]);
  uint8_t* source = held.get() + displacement;
  std::memcpy(source, input, static_cast<size_t>(bytes));
  std::unique_ptr<float[]> values(new float[static_cast<size_t>(n)]);
  require(bao::dequantize_row(dtype, source, values.get(), n), "a whole row is refused");

  double err2 = 0.0, ref2 = 0.0;
  bao::quantize_stats(dtype, values.get(), source, n, &err2, &ref2);
  require(!(err2 > 0.0), "the same bytes dequantise to different numbers");

  // The values, whatever they are (infinities and NaN included), as every type that takes this many.
  for (int to = -1; to <= 41; to++) {
    const int64_t to_bytes = bao::row_bytes(to, n);
    if (to_bytes == 0) continue;
    std::unique_ptr<uint8_t[]> quantised(new uint8_t[static_cast<size_t>(to_bytes)]);
    require(bao::quantize_row(to, values.get(), quantised.get(), n), "a whole row is not quantised");
    if (bao::block_elements(to) == 1) continue;
    std::unique_ptr<float[]> back(new float[static_cast<size_t>(n)]);
    bao::dequantize_row(to, quantised.get(), back.get(), n);
    for (int64_t i = 0; i < n; i++) require(back[i] - back[i] == 0.0f, "a quantiser wrote a block that is not finite");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  run(input, size);
  return 0;
}

#ifdef BAO_FUZZ_MAIN
int main(int argc, char** argv) {
  const long runs = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 20000;
  uint64_t state = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  auto next = [&state] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  };
  const int known[] = {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39, 40};
  for (long r = 0; r < runs; r++) {
    uint8_t input[1024];
    const size_t size = next() % (sizeof input + 1);
    const uint32_t kind = next() % 4;  // some inputs are mostly 0x00, 0x7F or 0xFF: zero, infinite and extreme scales
    for (size_t i = 0; i < size; i++) {
      const uint8_t extreme[4] = {0x00, 0x7F, 0xFF, 0x7C};
      input[i] = static_cast<uint8_t>(kind == 0 && next() % 4 ? extreme[next() % 4] : next());
    }
    if (size > 0 && r % 8) input[0] = static_cast<uint8_t>(known[next() % 17]);
    LLVMFuzzerTestOneInput(input, size);
  }
  std::printf("dequantize_fuzz: %ld inputs\n", runs);
  return 0;
}
#endif
