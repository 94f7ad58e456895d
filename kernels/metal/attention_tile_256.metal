// Attention for rows of prompts with heads of 256 values.
#define HEAD_DIM 256
#include "attention_tile.h"
