/* Edge features, edge indices and row gathers of fully connected events; the manual is events.h. */

#include "events.h"

#include <math.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

/* One function per instruction set, chosen when the library is loaded; elsewhere plain C. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12
#define EVERY_SET __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_SET
#endif

enum { DESTINATIONS = 64 }; /* in one pass: three rows of results stay in the first-level cache */

static const float PI_F = 3.14159274101257324f;
static const float TWO_PI_F = 6.28318548202514648f;

PUBLIC const char * events_source_digest(void)
{
    return HARNESS_SOURCE_DIGEST;
}

static int64_t edges_of(int64_t nodes, int self_loops)
{
    return self_loops ? nodes * nodes : nodes * (nodes > 0 ? nodes - 1 : 0);
}

static int check(const int64_t *node_off, int64_t n_events, int self_loops, int64_t n_edges)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n_events; i++) {
        int64_t nodes = node_off[i + 1] - node_off[i];
        if (nodes < 0)
            return EVENTS_BAD_OFFSETS;
        total += edges_of(nodes, self_loops);
    }
    return total == n_edges ? EVENTS_OK : EVENTS_BAD_ROWS;
}

/* One source against `count` destinations; out: (count, 3). |phi| <= 2 pi makes a difference need two turns at most,
 * and each turn is exact (Sterbenz), so d_phi is antisymmetric to the last bit except at -pi. */
EVERY_SET
static void row(float eta_s, float phi_s, const float *restrict eta, const float *restrict phi, int64_t count,
                float *restrict out)
{
    for (int64_t d = 0; d < count; d++) {
        float d_eta = eta_s - eta[d];
        float d_phi = phi_s - phi[d];
        d_phi = d_phi >= PI_F ? d_phi - TWO_PI_F : d_phi;
        d_phi = d_phi >= PI_F ? d_phi - TWO_PI_F : d_phi;
        d_phi = d_phi < -PI_F ? d_phi + TWO_PI_F : d_phi;
        d_phi = d_phi < -PI_F ? d_phi + TWO_PI_F : d_phi;
        double square = (double)d_eta * d_eta + (double)d_phi * d_phi;
        out[3 * d] = d_eta;
        out[3 * d + 1] = d_phi;
        out[3 * d + 2] = (float)sqrt(square);
    }
}

PUBLIC int events_edge_features(const float *node_x, int64_t width, int64_t eta, int64_t phi, const int64_t *node_off,
                                int64_t n_events, int self_loops, float *edge_x, int64_t n_edges)
{
    int status = check(node_off, n_events, self_loops, n_edges);
    if (status != EVENTS_OK)
        return status;
    float eta_d[DESTINATIONS], phi_d[DESTINATIONS];
    for (int64_t i = 0; i < n_events; i++) {
        int64_t nodes = node_off[i + 1] - node_off[i];
        int64_t degree = self_loops ? nodes : nodes - 1;
        const float *event = node_x + node_off[i] * width;
        for (int64_t first = 0; first < nodes; first += DESTINATIONS) {
            int64_t count = nodes - first < DESTINATIONS ? nodes - first : DESTINATIONS;
            for (int64_t d = 0; d < count; d++) {
                eta_d[d] = event[(first + d) * width + eta];
                phi_d[d] = event[(first + d) * width + phi];
            }
            for (int64_t s = 0; s < nodes; s++) {
                float eta_s = event[s * width + eta], phi_s = event[s * width + phi];
                float *out = edge_x + 3 * (s * degree + first);
                if (self_loops || s >= first + count) {
                    row(eta_s, phi_s, eta_d, phi_d, count, out);
                } else if (s < first) { /* the source stands before these destinations and was left out */
                    row(eta_s, phi_s, eta_d, phi_d, count, out - 3);
                } else {
                    int64_t before = s - first;
                    row(eta_s, phi_s, eta_d, phi_d, before, out);
                    row(eta_s, phi_s, eta_d + before + 1, phi_d + before + 1, count - before - 1, out + 3 * before);
                }
            }
        }
        edge_x += 3 * edges_of(nodes, self_loops);
    }
    return EVENTS_OK;
}

EVERY_SET
static void index_event(int64_t base, int64_t nodes, int self_loops, int64_t *restrict src, int64_t *restrict dst)
{
    int64_t degree = self_loops ? nodes : nodes - 1;
    for (int64_t s = 0; s < nodes; s++) {
        int64_t skip = self_loops ? degree : s;
        for (int64_t d = 0; d < degree; d++)
            src[d] = base + s;
        for (int64_t d = 0; d < skip; d++)
            dst[d] = base + d;
        for (int64_t d = skip; d < degree; d++)
            dst[d] = base + d + 1;
        src += degree;
        dst += degree;
    }
}

PUBLIC int events_edge_index(const int64_t *node_off, int64_t n_events, int self_loops, int64_t *src, int64_t *dst,
                             int64_t n_edges)
{
    int status = check(node_off, n_events, self_loops, n_edges);
    if (status != EVENTS_OK)
        return status;
    for (int64_t i = 0; i < n_events; i++) {
        int64_t nodes = node_off[i + 1] - node_off[i];
        int64_t edges = edges_of(nodes, self_loops);
        index_event(node_off[i] - node_off[0], nodes, self_loops, src, dst);
        src += edges;
        dst += edges;
    }
    return EVENTS_OK;
}

PUBLIC int events_gather(const char *source, int64_t row_bytes, const int64_t *offset, int64_t n_items,
                         const int64_t *index, int64_t n_index, char *target, int64_t n_rows)
{
    int64_t total = 0;
    for (int64_t k = 0; k < n_index; k++) {
        if (index[k] < 0 || index[k] >= n_items)
            return EVENTS_BAD_INDEX;
        int64_t rows = offset[index[k] + 1] - offset[index[k]];
        if (rows < 0)
            return EVENTS_BAD_OFFSETS;
        total += rows;
    }
    if (total != n_rows)
        return EVENTS_BAD_ROWS;
    for (int64_t k = 0; k < n_index; k++) {
        size_t bytes = (size_t)((offset[index[k] + 1] - offset[index[k]]) * row_bytes);
        memcpy(target, source + offset[index[k]] * row_bytes, bytes);
        target += bytes;
    }
    return EVENTS_OK;
}
