// Exported ops that follow the logits: mask, bias and penalties, log-probabilities, the draw (docs/sampling.md); validation of their operands.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

namespace {

// logits (OUTPUT rows, 1, vocabulary): their columns are ids, which the step block bounds.
bool are_logits(Recording& r, const Tensor& logits) {
  return rows_are(r, 2, "logits", logits, BAO_ROWS_OUTPUT) && shape(r, 2, "logits", logits, 1, r.step().vocabulary);
}

}  // namespace

int32_t bao_logits_process(bao_handle stream, bao_handle logits, bao_handle mask) {
  return record(stream, BAO_OP_LOGITS_PROCESS, "bao_logits_process", &OpTable::logits_process, [&](Recording& r, LogitsArgs& a) {
    return r.tensor(2, "logits", logits, &a.logits) && are_logits(r, a.logits) && r.tensor(3, "mask", mask, &a.mask, BAO_I32, true) &&
           (!a.mask.present() ||
            (rows(r, 3, "mask", a.mask, a.logits) && shape(r, 3, "mask", a.mask, 1, int32_t((int64_t(r.step().vocabulary) + 31) / 32))));
  });
}

int32_t bao_logprobs(bao_handle stream, bao_handle logits) {
  return record(stream, BAO_OP_LOGPROBS, "bao_logprobs", &OpTable::logprobs, [&](Recording& r, SampleArgs& a) {
    return r.tensor(2, "logits", logits, &a.logits) && are_logits(r, a.logits);
  });
}

int32_t bao_sample(bao_handle stream, bao_handle logits) {
  return record(stream, BAO_OP_SAMPLE, "bao_sample", &OpTable::sample, [&](Recording& r, SampleArgs& a) {
    return r.tensor(2, "logits", logits, &a.logits) && are_logits(r, a.logits);
  });
}
