// What norm.cu asks norm_wide.cu for: false when the shape or an alignment is not served there.
#pragma once
#include "run.h"

namespace bao {

bool launch_wide(const RmsNormArgs&, const Run&);
bool launch_wide(const NormAddArgs&, const Run&);
bool launch_wide(const AddNormArgs&, const Run&);
bool launch_wide(const NormAddNormsArgs&, const Run&);
bool launch_wide(const MoeMergeArgs&, const Run&);
bool launch_wide(const PleCombineArgs&, const Run&);

}  // namespace bao
