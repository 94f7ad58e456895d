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
  int32_t tops[W], most = 0;
  istore(tops, top);
  for (int i = 0; i < W; i++) most = tops[i] > most ? tops[i] : most;
  float largest;
  __builtin_memcpy(&largest, &most, 4);
  float d = largest / 127.0f, id = 127.0f / largest;
  if (!(id < __builtin_inff())) d = id = 0.0f;  // all zero, or so small that the reciprocal overflows
  if (most >= 0x7F800000) {
    // Values are not looked at: 0 * NaN in the dot product makes every output of this row NaN.
    __builtin_memset(out, 0, sizeof *out);
    out->d = out->sum32 = out->sum16[0] = out->sum16[1] = __builtin_nanf("");
    return;
  }
  int32_t q[32], half[2] = {0, 0};
  vf scale = vset1(id);
  for (int i = 0; i < 32; i += W) istore(q + i, vround_int(vmul(vload(x + i), scale)));
  for (int i = 0; i < 32; i++) out->q[i] = int8_t(q[i]);
  for (int i = 0; i < 16; i++) half[0] += q[i];
  for (int i = 16; i < 32; i++) half[1] += q[i];
  out->d = d;
  out->less32 = -(half[0] + half[1]);
  out->sum32 = d * float(half[0] + half[1]);
  for (int h = 0; h < 2; h++) {
    out->less16[h] = -half[h];
    out->sum16[h] = d * float(half[h]);
  }
  out->unused = 0;
}

void quantise_row(ActBlock* out, const float* x, int64_t columns) {
  for (int64_t i = 0; i < columns; i += 32) quantise_block(out + i / 32, x + i);
}
