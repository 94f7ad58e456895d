// Activations rounded to int8 per 32, with the sums that weights with a minimum or an offset need. One 64-byte record for 32 values, so that
// the dot product follows a single pointer per row.

struct ActBlock {
  int8_t q[32];
  float d;             // value = d * q; NaN when a value of the block is NaN or infinite (q is then 0)
  int32_t less32;      // -(sum of q)
  float sum32;         // d * sum of q
  int32_t less16[2];   // the same for each half
  float sum16[2];
  float unused;
};
static_assert(sizeof(ActBlock) == 64, "one cache line");

BAO_INLINE void quantise_block(ActBlock* out, const float* x) {
  vi top = iset(0);
  for (int i = 0; i < 32; i += W) top = imax(top, iand(ibits(vload(x + i)), iset(0x7FFFFFFFu)));
  if (vbits(vlt(ifloat_bits(top), vset1(INFINITE))) != (1u << W) - 1) {
    // Values are not looked at: 0 * NaN in the dot product makes every output of this row NaN.
    __builtin_memset(out, 0, sizeof *out);
    out->d = out->sum32 = out->sum16[0] = out->sum16[1] = __builtin_nanf("");
    return;
  }
  float largest = vreduce_max(ifloat_bits(top)), d = largest / 127.0f, id = 127.0f / largest;
  if (!(id < INFINITE)) d = id = 0.0f;  // all zero, or so small that the reciprocal overflows
  vf scale = vset1(id), half[2] = {vzero(), vzero()};  // sums of whole numbers: exact
  for (int i = 0; i < 32; i += W) {
    vf v = vmul(vload(x + i), scale);
    vstore_i8(out->q + i, v);
    half[i / 16] = vadd(half[i / 16], vfloat(vround_int(v)));
  }
  float sum[2] = {vsum(half[0]), vsum(half[1])};
  out->d = d;
  out->less32 = -int32_t(sum[0] + sum[1]);
  out->sum32 = d * (sum[0] + sum[1]);
  for (int h = 0; h < 2; h++) {
    out->less16[h] = -int32_t(sum[h]);
    out->sum16[h] = d * sum[h];
  }
  out->unused = 0;
}

void quantise_row(ActBlock* out, const float* x, int64_t columns) {
  for (int64_t i = 0; i < columns; i += 32) quantise_block(out + i / 32, x + i);
}
