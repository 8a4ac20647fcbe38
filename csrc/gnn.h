/* The fused message step of the event GNN: one two-layer network per edge, its norm and its sum over sources.
 *
 * A block is a run of whole events. Event e has n objects and, in this order, the edges (source 0, every
 * destination), (source 1, every destination) and so on; without self loops a source skips itself. Edges are
 * counted up, so there are no index arrays. N nodes and E edges in all, H = hidden, K = width of an edge's input.
 *
 *   x   = input, or layernorm(input) in_gamma + in_beta when in_gamma is given           [E, K]
 *   t1  = relu(x w1' + b1 + ps[source] + pd[destination])                                [E, H]
 *   t2  = relu(t1 w2' + b2)                                                              [E, H]
 *   out = layernorm(t2) gamma + beta                                                     [E, H], never stored
 *   sum[destination] += out, sources ascending                                           [N, H]
 *
 * An edge's state is kept as t2, before its norm, and the next step normalises it while loading: 512 bytes an edge
 * and round at H = 64 with t1 saved, 256 with t1 computed again.
 *
 * Gradients: d_out is the loss's derivative by out, d_x by x (both after the norm), so the step that made a state
 * differentiates its norm. Weight gradients are summed in runs of at most GNN_RUN edges and the runs then added up.
 *
 * All arrays are row-major, of float (precision 4) or double (precision 8), owned by the caller, and may have any
 * alignment. Nothing is allocated, nothing global is written; calls on different blocks may run at the same time.
 */
#ifndef GNN_H
#define GNN_H

#include <stdint.h>

/* declarations */
typedef struct {
    int64_t events;           /* in this block */
    const int64_t *objects;   /* [events] nodes of each event, 0 allowed */
    int64_t self_loops;       /* 1: an object is its own destination too */
    int64_t hidden;           /* H, a multiple of 16, at most 512 */
    int64_t width;            /* K: H, or 1 to 16 edge features */
    int64_t precision;        /* bytes of a number: 4 or 8 */
    int64_t isa;              /* instruction set: 0 plain C, 1 AVX2 and FMA, 2 AVX-512; only 0 for precision 8 */
    double epsilon;           /* of both norms */
    const void *x;            /* [E, K] */
    const void *in_gamma;     /* [K] or NULL: x is used as it stands */
    const void *in_beta;      /* [K] */
    const void *w1;           /* [H, K] */
    const void *b1;           /* [H] or NULL */
    const void *ps;           /* [N, H] or NULL, then pd is NULL too */
    const void *pd;           /* [N, H] */
    const void *w2;           /* [H, H] */
    const void *b2;           /* [H] */
    const void *gamma;        /* [H] */
    const void *beta;         /* [H] */
    void *t1;                 /* [E, H] or NULL: forward does not keep it, backward computes it again */
    void *t2;                 /* [E, H]; forward: may be NULL (not kept) or x itself where K = H */
    void *sum;                /* [N, H] or NULL: no sum wanted */
    const void *d_out;        /* [E, H] or NULL: zero */
    const void *d_sum;        /* [N, H] or NULL: zero */
    void *d_x;                /* [E, K] or NULL; K = H only */
    void *d_ps;               /* [N, H], NULL where ps is */
    void *d_pd;               /* [N, H] */
    void *d_w1;               /* [H, K] */
    void *d_b1;               /* [H] or NULL */
    void *d_w2;               /* [H, H] */
    void *d_b2;               /* [H] */
    void *d_gamma;            /* [H] */
    void *d_beta;             /* [H] */
    void *work;               /* gnn_work_bytes() bytes of scratch, one a concurrent call */
} gnn_step;

/* The best instruction set of this machine: 0, 1 or 2. */
int gnn_best_isa(void);
/* Bytes of scratch for one call. */
int64_t gnn_work_bytes(int64_t hidden, int64_t width, int64_t precision);
/* 0, or -1 for a shape outside the limits above, -2 for an instruction set that the machine lacks. */
int gnn_forward(const gnn_step *step);
int gnn_backward(const gnn_step *step);
const char *gnn_source_digest(void);
/* end of declarations */

#define GNN_RUN 2048
#define GNN_TILE 48

#endif
