// Quantised formats against rows that ggml quantised and dequantised (test/fixtures/quants), and against their own rules on odd input.
// Usage: quants_test FOLDER; prints one line per failure and exits with 1.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../../kernels/common/dequant.h"
#include "../../kernels/cpu/dequantize.h"
#include "../../kernels/cpu/quantize.h"
#include "quants_rows.h"

namespace {

int failures = 0;

__attribute__((format(printf, 2, 3))) void expect(bool holds, const char* format, ...) {
  if (holds) return;
  failures++;
  std::printf("FAIL ");
  va_list args;
  va_start(args, format);
  std::vprintf(format, args);
  va_end(args);
  std::printf("\n");
}

std::vector<uint8_t> read_file(const std::string& path) {
  std::vector<uint8_t> bytes;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) {
    std::printf("cannot open %s\n", path.c_str());
    std::exit(2);
  }
  uint8_t chunk[4096];
  for (size_t got; (got = std::fread(chunk, 1, sizeof chunk, file)) > 0;) bytes.insert(bytes.end(), chunk, chunk + got);
  std::fclose(file);
  return bytes;
}

const int all_types[] = {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39, 40};

// ---- against ggml ---------------------------------------------------------------------------------------------------------------

struct FixtureType {
  char name[16];
  int dtype;
  long q_offset, q_bytes, f_offset;
  double relative_error;
};

// quants.json keeps one type per line; only the numbers on it are needed.
std::vector<FixtureType> fixture_types(const std::vector<uint8_t>& json) {
  std::vector<FixtureType> types;
  std::string text(json.begin(), json.end());
  for (size_t start = 0; start < text.size();) {
    size_t end = text.find('\n', start);
    if (end == std::string::npos) end = text.size();
    FixtureType t;
    long f_bytes;
    if (std::sscanf(text.substr(start, end - start).c_str(),
                    " \"%15[^\"]\":{\"id\":%d,\"quantised\":{\"offset\":%ld,\"bytes\":%ld},\"dequantised\":{\"offset\":%ld,\"bytes\":%ld},"
                    "\"relative_error\":%lf",
                    t.name, &t.dtype, &t.q_offset, &t.q_bytes, &t.f_offset, &f_bytes, &t.relative_error) == 7) {
      types.push_back(t);
    }
    start = end + 1;
  }
  return types;
}

void test_against_ggml(const std::string& folder) {
  const std::vector<uint8_t> bin = read_file(folder + "/quants.bin");
  const std::vector<FixtureType> types = fixture_types(read_file(folder + "/quants.json"));
  const int64_t rows = 4, columns = 1024, n = rows * columns;
  expect(types.size() == 16, "the fixture describes 16 types, read %zu", types.size());
  std::vector<float> source(n), back(n), wanted(n);
  std::memcpy(source.data(), bin.data(), n * 4);

  for (const FixtureType& t : types) {
    expect(bao::row_bytes(t.dtype, n) == t.q_bytes, "%s: row_bytes %lld, ggml has %ld", t.name, (long long)bao::row_bytes(t.dtype, n),
           t.q_bytes);
    std::memcpy(wanted.data(), bin.data() + t.f_offset, n * 4);
    expect(bao::dequantize_row(t.dtype, bin.data() + t.q_offset, back.data(), n), "%s: dequantize_row refused", t.name);
    for (int64_t i = 0; i < n; i++) {
      if (std::memcmp(&back[i], &wanted[i], 4) == 0) continue;
      expect(false, "%s: element %lld dequantises to %.9g, ggml has %.9g", t.name, (long long)i, back[i], wanted[i]);
      break;
    }

    std::vector<uint8_t> q(t.q_bytes);
    expect(bao::quantize_row(t.dtype, source.data(), q.data(), n), "%s: quantize_row refused", t.name);
    int64_t block = bao::block_bytes(t.dtype);
    long different = 0, first = -1;
    for (long i = 0; i < t.q_bytes; i++) {
      if (q[i] == bin[t.q_offset + i]) continue;
      if (first < 0) first = i;
      different++;
    }
    expect(different == 0, "%s: %ld of %ld bytes differ from ggml, first in block %lld at byte %lld: %d, not %d", t.name, different,
           t.q_bytes, (long long)(first / block), (long long)(first % block), q[first < 0 ? 0 : first],
           bin[t.q_offset + (first < 0 ? 0 : first)]);

    double err2 = 0, ref2 = 0;
    bao::quantize_stats(t.dtype, source.data(), bin.data() + t.q_offset, n, &err2, &ref2);
    double relative = std::sqrt(err2 / ref2);
    expect(std::fabs(relative - t.relative_error) <= 2e-5 * t.relative_error, "%s: relative error %.7g, ggml's data says %.7g", t.name,
           relative, t.relative_error);
  }
}

// The same quantisers on rows that models do not have: 100 rows of ten shapes, compared by hash.
void test_shaped_rows(const std::string& folder) {
  const std::vector<uint8_t> text = read_file(folder + "/shapes.txt");
  std::string line;
  int types = 0;
  for (uint8_t c : text) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    int dtype;
    char name[16];
    unsigned long long wanted;
    if (std::sscanf(line.c_str(), "%d %15s %llx", &dtype, name, &wanted) == 3) {
      types++;
      ShapedRows rows;
      std::vector<float> x(ShapedRows::columns);
      std::vector<uint8_t> q(bao::row_bytes(dtype, ShapedRows::columns));
      uint64_t hash = hash_bytes(nullptr, 0);
      for (int r = 0; r < ShapedRows::rows; r++) {
        rows.next(r, x.data());
        bao::quantize_row(dtype, x.data(), q.data(), ShapedRows::columns);
        hash = hash_bytes(q.data(), static_cast<int64_t>(q.size()), hash);
      }
      expect(hash == wanted, "%s: shaped rows hash to %016llx, ggml's to %016llx", name, static_cast<unsigned long long>(hash), wanted);
    }
    line.clear();
  }
  expect(types == 15, "shapes.txt lists 15 types, read %d", types);
}

// ---- half and bfloat ------------------------------------------------------------------------------------------------------------

void test_half() {
  for (uint32_t h = 0; h < 65536; h++) {
    float v = bao::f16_to_f32(static_cast<uint16_t>(h));
    int exponent = (h >> 10) & 31, mantissa = h & 1023;
    double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) {
      expect(mantissa ? std::isnan(v) : std::isinf(v), "half %04x widens to %g", h, v);
    } else {
      expect(std::fabs(v) == magnitude && std::signbit(v) == (h >= 32768), "half %04x widens to %g", h, v);
    }
    if (!std::isnan(v)) expect(bao::f32_to_f16(v) == h, "half %04x comes back as %04x", h, bao::f32_to_f16(v));
    else expect(std::isnan(bao::f16_to_f32(bao::f32_to_f16(v))), "NaN %04x is lost", h);
  }
  // Between two neighbouring halves a float below the middle goes down, one above goes up, the middle to the even one.
  for (uint32_t h = 0; h < 0x7BFF; h++) {
    float low = bao::f16_to_f32(static_cast<uint16_t>(h)), high = bao::f16_to_f32(static_cast<uint16_t>(h + 1));
    float middle = low + (high - low) / 2;  // exact: floats have 13 more bits
    expect(bao::f32_to_f16(middle) == (h & 1 ? h + 1 : h), "tie above half %04x", h);
    expect(bao::f32_to_f16(std::nextafterf(middle, 0.0f)) == h, "below the middle after half %04x", h);
    expect(bao::f32_to_f16(-std::nextafterf(middle, INFINITY)) == ((h + 1u) | 0x8000u), "above the middle after half %04x", h);
  }
  expect(bao::f32_to_f16(65519.996f) == 0x7BFF, "65519.996 is the last float below infinity");
  expect(bao::f32_to_f16(65520.0f) == 0x7C00, "65520 rounds to infinity");
  expect(bao::f32_to_f16(3e38f) == 0x7C00 && bao::f32_to_f16(-INFINITY) == 0xFC00, "overflow is infinity");
  expect(bao::f32_to_f16(1e-45f) == 0 && bao::f32_to_f16(-1e-45f) == 0x8000, "underflow keeps the sign");

  for (uint32_t b = 0; b < 65536; b++) {
    float v = bao::bf16_to_f32(static_cast<uint16_t>(b));
    if (!std::isnan(v)) expect(bao::f32_to_bf16(v) == b, "bfloat %04x comes back as %04x", b, bao::f32_to_bf16(v));
  }
  expect(bao::f32_to_bf16(bao::bits_to_float(0x3F808000u)) == 0x3F80, "tie to even, down");
  expect(bao::f32_to_bf16(bao::bits_to_float(0x3F818000u)) == 0x3F82, "tie to even, up");
  expect(bao::f32_to_bf16(bao::bits_to_float(0x3F808001u)) == 0x3F81, "above the middle");
  expect(std::isnan(bao::bf16_to_f32(bao::f32_to_bf16(bao::bits_to_float(0x7F800001u)))), "a NaN with a small payload stays one");
  expect(bao::f32_to_bf16(3.4028234e38f) == 0x7F80, "the largest float rounds to infinity");
}

// ---- shapes and unusual values --------------------------------------------------------------------------------------------------

void test_shapes() {
  for (int dtype : all_types) {
    int elements = bao::block_elements(dtype);
    expect(elements > 0 && bao::dtype_name(dtype), "type %d is known", dtype);
    expect(bao::row_bytes(dtype, 0) == 0 && bao::row_bytes(dtype, -elements) == 0, "%s: no row of 0", bao::dtype_name(dtype));
    if (elements > 1) expect(bao::row_bytes(dtype, elements + 1) == 0, "%s: partial blocks", bao::dtype_name(dtype));
    int64_t huge = INT64_MAX / elements * elements;
    if (bao::block_bytes(dtype) > elements) expect(bao::row_bytes(dtype, huge) == 0, "%s: overflow", bao::dtype_name(dtype));
    expect(bao::row_bytes(dtype, 3LL << 40) == (3LL << 40) / elements * bao::block_bytes(dtype), "%s: 2^41", bao::dtype_name(dtype));
  }
  float x[256] = {}, y[256];
  uint8_t q[1024];
  for (int dtype : {-1, 4, 5, 9, 15, 16, 31, 41, 1 << 30}) {
    expect(bao::block_elements(dtype) == 0 && bao::row_bytes(dtype, 256) == 0 && !bao::dtype_name(dtype), "type %d is unknown", dtype);
    expect(!bao::quantize_row(dtype, x, q, 256) && !bao::dequantize_row(dtype, q, y, 256) && !bao::can_quantize(dtype),
           "type %d is refused", dtype);
  }
  expect(!bao::quantize_q8_0(x, q, 33), "33 is no multiple of 32");
}

// Largest error that a finite row may have after a round trip, as a share of its block's peak: half a level of the coarsest kind, and for
// the fitted types, which may trade the peak for the rest, a bound seen to hold with room. 0.5 for Q2_K: four levels in all.
double round_trip_bound(int dtype) {
  switch (dtype) {
    case bao::DTYPE_F32: return 0;
    case bao::DTYPE_F16: return 1.0 / 2048;
    case bao::DTYPE_BF16: return 1.0 / 256;
    case bao::DTYPE_Q8_0: return (0.5 + 127.0 / 2048) / 127;  // half a level, and the rounding of the scale to 11 bits
    case bao::DTYPE_Q6_K: return 0.06;
    case bao::DTYPE_Q5_0: case bao::DTYPE_Q5_1: case bao::DTYPE_Q5_K: return 0.08;
    case bao::DTYPE_Q2_K: return 0.6;
    case bao::DTYPE_Q3_K: return 0.4;
    case bao::DTYPE_MXFP4: return 0.26;
    case bao::DTYPE_NVFP4: return 0.25;
    default: return 0.2;
  }
}

uint32_t random_state = 1;
uint32_t next_random() {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}
float next_normal() {
  float sum = 0;
  for (int i = 0; i < 12; i++) sum += static_cast<float>(next_random()) / 16777216.0f;
  return sum - 6.0f;
}

void test_round_trip() {
  std::vector<float> x(256), y(256);
  for (int dtype : all_types) {
    std::vector<uint8_t> q(bao::row_bytes(dtype, 256) + 1);
    for (int shape = 0; shape < 40; shape++) {
      float scale = std::ldexp(1.0f, static_cast<int>(next_random() % 12) - 8);
      if (dtype == bao::DTYPE_NVFP4) scale *= 64.0f;  // its scales end at 2^-9: smaller tensors need the tensor's own scale
      for (int i = 0; i < 256; i++) {
        float v = next_normal() * scale;
        if (shape % 5 == 1) v = std::fabs(v);
        if (shape % 5 == 2) v = -std::fabs(v);
        if (shape % 5 == 3) v = scale;
        if (shape % 5 == 4) v = i % 256 < 128 ? 0.0f : v;
        x[i] = v;
      }
      expect(bao::quantize_row(dtype, x.data(), q.data() + 1, 256), "%s: refused", bao::dtype_name(dtype));  // an odd address
      expect(bao::dequantize_row(dtype, q.data() + 1, y.data(), 256), "%s: refused", bao::dtype_name(dtype));
      float peak = 0;
      for (float v : x) peak = std::fmax(peak, std::fabs(v));
      for (int i = 0; i < 256; i++) {
        bool close = std::fabs(x[i] - y[i]) <= round_trip_bound(dtype) * peak;
        expect(close, "%s: shape %d, element %d: %g came back as %g (peak %g)", bao::dtype_name(dtype), shape, i, x[i], y[i], peak);
        if (!close) break;
      }
    }
    std::fill(x.begin(), x.end(), 0.0f);
    bao::quantize_row(dtype, x.data(), q.data(), 256);
    bao::dequantize_row(dtype, q.data(), y.data(), 256);
    for (float v : y) expect(v == 0.0f, "%s: zeros come back as %g", bao::dtype_name(dtype), v);
  }
}

void test_not_finite() {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float extremes[] = {nan, -nan, inf, -inf, 3.4e38f, -3.4e38f, 1e-45f, -1e-45f, 1e-38f, 1e-20f, 65504.0f, 1e9f, 0.0f, -0.0f, 1.0f};
  std::vector<float> x(256), clean(256), y(256);
  for (int dtype : all_types) {
    if (bao::block_elements(dtype) == 1) continue;
    const char* name = bao::dtype_name(dtype);
    std::vector<uint8_t> q(bao::row_bytes(dtype, 256)), q_clean(q.size());

    // NaN is 0: the same bytes as with a zero in its place.
    for (int i = 0; i < 256; i++) {
      x[i] = clean[i] = next_normal();
      if (i % 7 == 0) {
        x[i] = i % 2 ? nan : -nan;
        clean[i] = 0.0f;
      }
    }
    bao::quantize_row(dtype, x.data(), q.data(), 256);
    bao::quantize_row(dtype, clean.data(), q_clean.data(), 256);
    expect(q == q_clean, "%s: NaN is not taken as 0", name);

    // Infinities count as the largest number: finite, and of the right sign and order of magnitude.
    for (int i = 0; i < 256; i++) x[i] = i % 32 == 5 ? -inf : i % 32 == 9 ? inf : next_normal();
    bao::quantize_row(dtype, x.data(), q.data(), 256);
    bao::dequantize_row(dtype, q.data(), y.data(), 256);
    for (int i = 0; i < 256; i++) {
      expect(std::isfinite(y[i]), "%s: a row with infinities comes back with %g", name, y[i]);
      const float least = dtype == bao::DTYPE_NVFP4 ? 2000.0f : 20000.0f;  // NVFP4 ends at 2688
      if (std::isinf(x[i])) expect(std::copysign(1.0f, x[i]) * y[i] > least, "%s: %g comes back as %g", name, x[i], y[i]);
    }

    // Any mixture, also with floats that underflow: no trap (the sanitizer build), nothing but finite numbers.
    for (int round = 0; round < 2000; round++) {
      for (float& v : x) {
        v = next_random() % 4 ? extremes[next_random() % 15] : next_normal();
        if (round % 3 == 0) v = extremes[6 + next_random() % 4];
        if (round % 3 == 1) v = bao::bits_to_float(next_random() << 8 ^ next_random());
      }
      bao::quantize_row(dtype, x.data(), q.data(), 256);
      bao::dequantize_row(dtype, q.data(), y.data(), 256);
      bool finite = true;
      for (float v : y) finite = finite && std::isfinite(v);
      expect(finite, "%s: round %d of extremes does not come back finite", name, round);
    }
  }
  // As plain conversions the half types let them pass.
  uint16_t half[4];
  const float passing[] = {nan, inf, -inf, 70000.0f};
  bao::quantize_row(bao::DTYPE_F16, passing, half, 4);
  expect((half[0] & 0x7FFF) > 0x7C00 && half[1] == 0x7C00 && half[2] == 0xFC00 && half[3] == 0x7C00, "F16 passes NaN and infinities");
  bao::quantize_row(bao::DTYPE_BF16, passing, half, 4);
  expect((half[0] & 0x7FFF) > 0x7F80 && half[1] == 0x7F80 && half[2] == 0xFF80, "BF16 passes NaN and infinities");
}

// ---- single values whose answer follows from the format's definition ------------------------------------------------------------

void test_definitions() {
  const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 16; code++) {
    expect(bao::iq4_value(code) == iq4[code], "IQ4 level %d is %d", code, bao::iq4_value(code));
    float value = static_cast<float>(bao::e2m1_doubled(code)) / 2;
    expect(value == (code < 8 ? e2m1[code] : -e2m1[code - 8]), "E2M1 code %d is %g", code, value);
  }
  for (int e = 0; e < 256; e++) expect(bao::e8m0_halved(static_cast<uint8_t>(e)) == std::ldexp(1.0f, e - 128), "E8M0 %d", e);
  for (int b = 0; b < 256; b++) {
    int exponent = (b >> 3) & 15, mantissa = b & 7;
    double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if ((b & 127) == 127) value = 0;
    double got = 2.0 * bao::ue4m3_halved(static_cast<uint8_t>(b));
    expect(got == value, "UE4M3 %02x is %g, not %g", b, got, value);
  }
  // Every UE4M3 scale is found again from a group whose peak is 6 times it.
  for (int b = 1; b < 127; b++) {
    float x[64] = {}, scale = 2 * bao::ue4m3_halved(static_cast<uint8_t>(b));
    for (int g = 0; g < 4; g++) x[16 * g + 3] = 6 * scale;
    bao::BlockNVFP4 block;
    bao::quantize_row(bao::DTYPE_NVFP4, x, &block, 64);
    for (int g = 0; g < 4; g++) expect(block.d[g] == b, "NVFP4 scale %g is stored as %02x, not %02x", scale, block.d[g], b);
  }
  // Q8_0 rounds halves away from zero, which tells it from rounding to even: with peak 127 the scale is 1.
  float x[32] = {127.0f, 0.5f, 1.5f, -0.5f, -2.5f, 0.49999997f, -126.5f};
  bao::BlockQ8_0 q;
  bao::quantize_q8_0(x, &q, 32);
  const int wanted[7] = {127, 1, 2, -1, -3, 0, -127};
  for (int i = 0; i < 7; i++) expect(q.qs[i] == wanted[i], "Q8_0 rounds %g to %d, not %d", x[i], q.qs[i], wanted[i]);
}

}  // namespace

int main(int argc, char** argv) {
  test_definitions();
  test_half();
  test_shapes();
  test_round_trip();
  test_not_finite();
  const std::string folder = argc > 1 ? argv[1] : "test/fixtures/quants";
  test_against_ggml(folder);
  test_shaped_rows(folder);
  if (failures == 0) std::printf("quants: all checks passed\n");
  return failures == 0 ? 0 : 1;
}
