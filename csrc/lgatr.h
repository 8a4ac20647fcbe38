/* L-GATr on rows: linear maps, geometric product, norms, gate, heads, attention and MLP, forward and backward.

   A row of C multivector channels and S scalar channels is 16 C + S numbers: Z = scalars | pseudoscalars | the S
   channels, then for t, x, y, z: vector | axial, then for tx, ty, tz: electric | magnetic (impl/lgatr/rows.py). Rows
   stand one behind the other. `kind` chooses the number and the instructions: 2 * level + (1 for double, 0 for float),
   level 0 plain C, 1 AVX2 with FMA, 2 AVX-512; lgatr_level() says the highest this machine has.

   A row of the slim network's V vectors and S scalars is 4 V + S numbers: t, x, y, z of all vectors, then the scalars;
   its packed weight is the matrix of the vectors (V, V'), that of the scalars (S, S') and the bias of the scalars.

   A packed weight is the matrices of Z (2 in_mv + in_s, 2 out_mv + out_s), V and F (2 in_mv, 2 out_mv), each as panels
   of LGATR_PANEL columns filled up with zeros, then the bias of Z, filled up likewise.

   The caller owns every array; `scratch` has as many numbers as the function of that name says. Functions keep nothing
   between calls and may run in several threads at once. Gradients of weights and gains are added to what is there.
   Nothing is allocated, so nothing fails; pointers must be valid and sizes as stated. */
#ifndef LGATR_H
#define LGATR_H
#include <stdint.h>

/* declarations */
typedef struct {
  int in_mv, in_s, out_mv, out_s;
  int bias; /* whether the bias part is read and gets a gradient */
  int slim; /* 1: rows of the slim network, in_mv and out_mv count vectors */
} lgatr_shape;

typedef struct {
  int channels, scalars, heads; /* of the stream; heads of the attention */
  int hidden_mv, hidden_s;      /* channels of a head */
  int affine;                   /* whether the norm has gains */
  int slim;                     /* 1: rows of the slim network, mv counts vectors */
  double epsilon;               /* floor of the norm; slim: what is added */
} lgatr_attention;

typedef struct {
  int channels, scalars;         /* of the stream */
  int product_mv;                /* channels of the geometric product */
  int hidden_mv, hidden_s;       /* channels between product and last map */
  int bivector;                  /* 0: bivector parts of the product are zero */
  int affine;
  int nonlinearity;              /* 0 relu, 1 sigmoid, 2 tanh, 3 gelu (tanh form), 4 silu */
  double epsilon;
} lgatr_mlp;

typedef struct {
  int channels, scalars; /* of the stream */
  int hidden_v, hidden_s;
  int affine;
  int nonlinearity, nonlinearity_v;
  double epsilon;
} lgatr_slim_mlp;

int lgatr_level(void);
const char *lgatr_source_digest(void);

/* packed[i] = ± parameters[source[i] / 2], minus where source is odd; parameters[0] is a zero for what has no parameter.
   And the way back, added to zeroed gradients. */
void lgatr_pack(int kind, int64_t count, const int32_t *source, const void *parameters, void *packed);
void lgatr_unpack(int kind, int64_t count, const int32_t *source, const void *packed, void *parameters);

/* y (n, 16 out_mv + out_s) = x (n, 16 in_mv + in_s) times weight; dx, dweight from dy */
int64_t lgatr_linear_scratch(const lgatr_shape *shape);
void lgatr_linear_forward(int kind, const lgatr_shape *shape, int64_t n, const void *weight, const void *x, void *y);
void lgatr_linear_backward(int kind, const lgatr_shape *shape, int64_t n, const void *weight, const void *x,
                           const void *dy, void *dx, void *dweight, void *scratch);

/* out (n, 16 channels + scalars): the product of x and y (n, 16 channels), with the scalar channels of s (n, scalars) */
void lgatr_product_forward(int kind, int channels, int scalars, int bivector, int64_t n, const void *x, const void *y,
                           const void *s, void *out);
void lgatr_product_backward(int kind, int channels, int scalars, int bivector, int64_t n, const void *x, const void *y,
                            const void *dout, void *dx, void *dy, void *ds);

/* rows (n, 16 channels + scalars); gain one row or null, dgain the same */
int64_t lgatr_norm_scratch(int channels, int scalars);
void lgatr_norm_forward(int kind, int channels, int scalars, double epsilon, int64_t n, const void *x,
                        const void *gain, void *out, void *scratch);
void lgatr_norm_backward(int kind, int channels, int scalars, double epsilon, int64_t n, const void *x,
                         const void *gain, const void *dout, void *dx, void *dgain, void *scratch);

/* each channel times the nonlinearity of its scalar part, scalars through it */
void lgatr_gate_forward(int kind, int channels, int scalars, int nonlinearity, int64_t n, const void *x, void *out,
                        void *scratch);
void lgatr_gate_backward(int kind, int channels, int scalars, int nonlinearity, int64_t n, const void *x,
                         const void *dout, void *dx, void *scratch);

/* x (n, 16 parts hidden heads + parts hidden_s heads), channels in the order (part, hidden, head), normalised a head ->
   out (n, parts, heads, 16 hidden + hidden_s); with `signed` part 0 gets the signs of the inner product */
void lgatr_heads_forward(int kind, int parts, int heads, int hidden, int hidden_s, int with_signs, int64_t n,
                         const void *x, void *out);
void lgatr_heads_backward(int kind, int parts, int heads, int hidden, int hidden_s, int with_signs, int64_t n,
                          const void *x, const void *dout, void *dx);

/* y = x + attention(norm(x)), items (offsets[i] … offsets[i + 1]) of a set seeing each other; the backward pass
   computes everything again from x. weight: qkv without bias, then out with bias, packed, one behind the other */
int64_t lgatr_attention_weight(const lgatr_attention *a);
int64_t lgatr_attention_scratch(const lgatr_attention *a, int64_t sets, const int64_t *offsets);
void lgatr_attention_forward(int kind, const lgatr_attention *a, int64_t sets, const int64_t *offsets,
                             const void *weight, const void *gain, const void *x, void *y, void *scratch);
void lgatr_attention_backward(int kind, const lgatr_attention *a, int64_t sets, const int64_t *offsets,
                              const void *weight, const void *gain, const void *x, const void *dy, void *dx,
                              void *dweight, void *dgain, void *scratch);

/* y = x + mlp(norm(x)), tile by tile. The forward pass writes the hidden rows before their norm into `hidden`, unless it
   is 0; the backward pass reads them there (to compute them is half of the layer) and computes the rest again from x.
   weight: left, right, out, last */
int64_t lgatr_mlp_weight(const lgatr_mlp *m);
int64_t lgatr_mlp_scratch(const lgatr_mlp *m);
void lgatr_mlp_forward(int kind, const lgatr_mlp *m, int64_t n, const void *weight, const void *gain, const void *x,
                       void *y, void *hidden, void *scratch);
void lgatr_mlp_backward(int kind, const lgatr_mlp *m, int64_t n, const void *weight, const void *gain, const void *x,
                        const void *hidden, const void *dy, void *dx, void *dweight, void *dgain, void *scratch);

/* the slim network's y = x + mlp(norm(x)) with one gated unit; weight: gated unit, last */
int64_t lgatr_slim_mlp_weight(const lgatr_slim_mlp *m);
int64_t lgatr_slim_mlp_scratch(const lgatr_slim_mlp *m);
void lgatr_slim_mlp_forward(int kind, const lgatr_slim_mlp *m, int64_t n, const void *weight, const void *gain,
                            const void *x, void *y, void *scratch);
void lgatr_slim_mlp_backward(int kind, const lgatr_slim_mlp *m, int64_t n, const void *weight, const void *gain,
                             const void *x, const void *dy, void *dx, void *dweight, void *dgain, void *scratch);
/* end of declarations */

#define LGATR_PANEL 32
#endif
