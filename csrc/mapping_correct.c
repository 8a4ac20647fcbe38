/* Corrections of a frame: the checks before the inner loop of this machine's instruction set. */
#include "mapping_internal.h"

int mapping_correct(const mapping_frame *f, int32_t instructions)
{
    if (f == NULL || f->pixels < 0 || f->scalars < 0 || f->kind < MAPPING_UINT8 || f->kind > MAPPING_FLOAT64)
        return MAPPING_BAD_ARGUMENT;
    if (f->pixels > 0 && (f->counts == NULL || f->intensity == NULL || f->out_variance == NULL || f->out_mask == NULL))
        return MAPPING_BAD_ARGUMENT;
    if ((f->factor == NULL) != (f->factor_squared == NULL) || (f->background == NULL && f->background_variance != NULL))
        return MAPPING_BAD_ARGUMENT;
    if (f->scalars > 0 && (f->c == NULL || f->c2 == NULL || f->v == NULL))
        return MAPPING_BAD_ARGUMENT;
    const instruction_table *table = mapping_instructions_for(instructions);
    if (table == NULL)
        return MAPPING_BAD_ARGUMENT;
    table->correct(f);
    return MAPPING_OK;
}
