/* The manual of the C library behind impl.events: edge features, edge indices and row gathers of whole batches.
 *
 * An event with n nodes is fully connected. Its edges are source-major: source 0 with all destinations ascending,
 * then source 1, and so on; n(n-1) edges, or n*n with self loops. The edges of a batch stand one event after the
 * other. Node offsets are int64 (n_events + 1), ascending; event i owns the rows node_off[i] .. node_off[i+1]-1,
 * and node_off[0] need not be 0.
 *
 * Every pointer is borrowed for the call; nothing is allocated or kept. Results do not depend on the machine:
 * each value is one chain of IEEE operations without contraction, whatever instruction set carries it out.
 * Every function but events_source_digest returns a status.
 */
#ifndef HARNESS_EVENTS_H
#define HARNESS_EVENTS_H

#include <stdint.h>

/* declarations */

/* status: done; offsets descend; the output has another number of rows than the offsets ask for; an index is out of range */
#define EVENTS_OK 0
#define EVENTS_BAD_OFFSETS 1
#define EVENTS_BAD_ROWS 2
#define EVENTS_BAD_INDEX 3

/* SHA-256 of the sources that this library was built from, 64 hex digits, static storage. */
const char *events_source_digest(void);

/* Edge features of n_events events.
 *   node_x     float32 (rows, width), C order; column `eta` pseudorapidity, column `phi` azimuth in rad, |phi| <= 2 pi
 *   node_off   int64 (n_events + 1)
 *   edge_x     float32 (n_edges, 3), written: d_eta = eta_s - eta_d; d_phi = phi_s - phi_d wrapped into [-pi, pi),
 *              where pi is the float32 nearest to it and +pi becomes -pi; d_R = sqrt(d_eta^2 + d_phi^2), its square in double
 */
int events_edge_features(const float *node_x, int64_t width, int64_t eta, int64_t phi, const int64_t *node_off,
                         int64_t n_events, int self_loops, float *edge_x, int64_t n_edges);

/* Edge indices of n_events events as rows of the batch: node_off[0] + ... counts as node 0.
 *   src, dst   int64 (n_edges), written
 */
int events_edge_index(const int64_t *node_off, int64_t n_events, int self_loops, int64_t *src, int64_t *dst,
                      int64_t n_edges);

/* Copy the rows of chosen items one after the other.
 *   source     n_items items, item i being the bytes offset[i]*row_bytes .. offset[i+1]*row_bytes
 *   index      int64 (n_index), each within 0 .. n_items-1
 *   target     n_rows*row_bytes bytes, written
 */
int events_gather(const char *source, int64_t row_bytes, const int64_t *offset, int64_t n_items, const int64_t *index,
                  int64_t n_index, char *target, int64_t n_rows);

/* end of declarations */

#endif
