// Attention for rows of prompts with heads of 512 values.
#define HEAD_DIM 512
#include "attention_tile.h"
