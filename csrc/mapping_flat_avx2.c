/* The inner loops with AVX2 instructions; nothing on other machines. */
#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2,popcnt")
#endif

#define LANES_AVX2
#include "mapping_internal.h"

#include "mapping_lanes.h"

#include "mapping_flat.inc"
#include "mapping_sums.inc"
#include "mapping_correct.inc"

const instruction_table mapping_avx2 = {flat_load, flat_measure, flat_map, sums_mark, sums_rank, sums_add, correct};

#ifdef __clang__
#pragma clang attribute pop
#endif
#else
typedef int nothing; /* a translation unit must not be empty */
#endif
