// The plain reference as a complete table of ops, in the order of OpTable.
#include "reference.h"

namespace bao {

const OpTable reference_ops = {
    reference::embed,       reference::rms_norm,      reference::norm_add,       reference::add_norm,  reference::norm_add_norms,
    reference::moe_merge,   reference::rope_table,    reference::rope,           reference::kv_append, reference::head_norm_rope_append,
    reference::attention,   reference::matmul,        reference::matmul_group,   reference::glu,       reference::matmul_glu,
    reference::topk_softmax, reference::router,       reference::moe_matmul,     reference::moe_matmul_glu, reference::moe_sum,
    reference::moe_matmul_sum, reference::add,        reference::scale,          reference::softcap,   reference::copy,
    reference::gather_rows, reference::ple_combine,   reference::pool_rows,      reference::argmax,    reference::logits_process,
    reference::logprobs,    reference::sample,
};

}  // namespace bao
