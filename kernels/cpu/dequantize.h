// Rows of any GGUF type to f32: shared by the backends, in common/.
#pragma once
#include "../common/dequantize.h"
