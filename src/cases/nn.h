#pragma once

// Cases of the dense operations: one function per family, and helpers.

#include <string>
#include <vector>

#include "cases/case.h"

namespace thalweg::cases {

void add_conv_cases(std::vector<Case>& cases);
void add_row_cases(std::vector<Case>& cases);   // norms, rope, embedding, add, swiglu
void add_move_cases(std::vector<Case>& cases);  // store_kv, split_qkvz
void add_attention_cases(std::vector<Case>& cases);

// Makes a case one that is only timed.
Case bench_case(Case made);

// The same for a case that is too large for the CPU.
Case large_case(Case made);

// A cache of Q8_0 of the values that the generator gives in turn; NaN as a block's first value makes it a block of NaN.
Tensor q8_0_input(Memory& memory, const std::vector<std::int64_t>& shape, const Memory::Generator& value);

// A vector of integers, [n] i32.
Tensor integers(Memory& memory, const std::vector<std::int64_t>& values);

// Running sums of `lengths` from 0 on, [N+1] i32.
Tensor cu_seqlens_of(Memory& memory, const std::vector<std::int64_t>& lengths);

// "_1_0_5"
std::string list_name(const std::vector<std::int64_t>& values);

}  // namespace thalweg::cases
