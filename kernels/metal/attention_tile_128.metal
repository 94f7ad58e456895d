// Attention for rows of prompts with heads of 128 values.
#define HEAD_DIM 128
#include "attention_tile.h"
