/* Batches of records merged: two ascending lists, walked once. */
#include "mapping_internal.h"

#include <string.h>

static uint64_t key_of(const mapping_records *r, int64_t i)
{
    return (uint64_t)r->chunk[i] << 32 | r->local[i];
}

static bool readable(const mapping_records *r)
{
    return r != NULL && r->count >= 0 &&
           (r->count == 0 || (r->chunk != NULL && r->local != NULL && r->sum_intensity != NULL && r->sum_variance != NULL &&
                              r->sum_weight != NULL && r->contributors != NULL));
}

/* Copy the records of `from` that begin at `first` to the end of `to`. */
static void append(mapping_records *to, const mapping_records *from, int64_t first)
{
    const size_t rest = (size_t)(from->count - first);
    const int64_t at = to->count;
    if (rest == 0)
        return;
    memcpy(to->chunk + at, from->chunk + first, rest * sizeof *to->chunk);
    memcpy(to->local + at, from->local + first, rest * sizeof *to->local);
    memcpy(to->sum_intensity + at, from->sum_intensity + first, rest * sizeof *to->sum_intensity);
    memcpy(to->sum_variance + at, from->sum_variance + first, rest * sizeof *to->sum_variance);
    memcpy(to->sum_weight + at, from->sum_weight + first, rest * sizeof *to->sum_weight);
    memcpy(to->contributors + at, from->contributors + first, rest * sizeof *to->contributors);
    to->count += (int64_t)rest;
}

/* The bits of one of two numbers, or of their sum; masks are all ones or zero, for a branch here is missed every other time. */
static double choose(double left, double right, uint64_t from_left, uint64_t from_both)
{
    const double sum = left + right;
    uint64_t l, r, s;
    memcpy(&l, &left, 8);
    memcpy(&r, &right, 8);
    memcpy(&s, &sum, 8);
    l = (l & from_left) | (r & ~from_left);
    l = (s & from_both) | (l & ~from_both);
    memcpy(&left, &l, 8);
    return left;
}

int mapping_add(const mapping_records *left, const mapping_records *right, mapping_records *out)
{
    if (!readable(left) || !readable(right) || !readable(out) || out->count < left->count ||
        out->count - left->count < right->count)
        return MAPPING_BAD_ARGUMENT;
    const mapping_records a = *left, b = *right, o = *out;
    int64_t i = 0, j = 0, n = 0;
    while (i < a.count && j < b.count) {
        const uint64_t x = key_of(&a, i), y = key_of(&b, j);
        const uint64_t from_left = -(uint64_t)(x <= y), from_right = -(uint64_t)(y <= x), both = from_left & from_right;
        const uint64_t key = x < y ? x : y;
        o.chunk[n] = (uint32_t)(key >> 32);
        o.local[n] = (uint32_t)key;
        o.sum_intensity[n] = choose(a.sum_intensity[i], b.sum_intensity[j], from_left, both);
        o.sum_variance[n] = choose(a.sum_variance[i], b.sum_variance[j], from_left, both);
        o.sum_weight[n] = choose(a.sum_weight[i], b.sum_weight[j], from_left, both);
        o.contributors[n] = (a.contributors[i] & (uint32_t)from_left) + (b.contributors[j] & (uint32_t)from_right);
        n++;
        i += (int64_t)(from_left & 1);
        j += (int64_t)(from_right & 1);
    }
    out->count = n;
    append(out, &a, i);
    append(out, &b, j);
    return MAPPING_OK;
}
