/* The inner loops in plain C, for any machine. */
#include "mapping_internal.h"

#include "mapping_lanes.h"

#include "mapping_flat.inc"
#include "mapping_sums.inc"
#include "mapping_correct.inc"

const instruction_table mapping_plain = {flat_load, flat_measure, flat_map, sums_mark, sums_rank, sums_add, correct};
