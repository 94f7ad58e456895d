// The table of this instruction set: the plain reference, row by row replaced by what the included files have.
// Included last in each isa_*.cpp, inside its anonymous namespace.

OpTable make_table() {
  OpTable t = reference_ops;
  t.embed = record_embed;
  t.rms_norm = record_rms_norm;
  t.norm_add = record_norm_add;
  t.add_norm = record_add_norm;
  t.norm_add_norms = record_norm_add_norms;
  t.moe_merge = record_moe_merge;
  t.rope_table = record_rope_table;
  t.rope = record_rope;
  t.kv_append = record_kv_append;
  t.head_norm_rope_append = record_head_norm_rope_append;
  t.attention = record_attention;
  t.matmul = record_matmul;
  t.matmul_group = record_matmul_group;
  t.glu = record_glu;
  t.matmul_glu = record_matmul_glu;
  t.topk_softmax = record_topk_softmax;
  t.router = record_router;
  t.moe_matmul = record_moe_matmul;
  t.moe_matmul_glu = record_moe_matmul_glu;
  t.moe_sum = record_moe_sum;
  t.moe_matmul_sum = record_moe_matmul_sum;
  t.add = record_add;
  t.scale = record_scale;
  t.softcap = record_softcap;
  t.copy = record_copy;
  t.gather_rows = record_gather_rows;
  t.ple_combine = record_ple_combine;
  t.pool_rows = record_pool_rows;
  t.argmax = record_argmax;
  t.logits_process = record_logits_process;
  t.logprobs = record_logprobs;
  t.sample = record_sample;
  return t;
}
