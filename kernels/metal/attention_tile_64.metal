// Attention for rows of prompts with heads of 64 values.
#define HEAD_DIM 64
#include "attention_tile.h"
