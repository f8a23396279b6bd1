/* trivet.h: the C ABI of trivet, and its documentation. Plain C11, and C++.
 *
 * What is not in this file is not public. Names are tv_<noun>_<verb>.
 *
 * Errors      Every function that can fail returns a tv_status: TV_OK is 0. The text of the last failure on
 *             this thread is tv_last_error(). On failure, results are as they were, and so is everything
 *             that the call would have changed, unless its comment says otherwise. No function prints,
 *             aborts, or lets a C++ exception out.
 * Results     come back through pointers, which come last. A result pointer may not be NULL unless its
 *             comment says so.
 * Handles     tv_plan, tv_model, tv_program, tv_engine, tv_session, tv_tokenizer, tv_tokenizer_stream,
 *             tv_sampler and tv_chat are opaque. Each is released by its tv_<noun>_free, in any order:
 *             a handle keeps alive what it was made from. Freeing NULL is allowed.
 * Structs     that may grow begin with `size_t struct_size`, which the caller sets to the sizeof it was
 *             compiled with. A smaller one is accepted: fields beyond it take their defaults (options) or
 *             are not filled in (infos). tv_tensor, tv_size, tv_dim, tv_step, tv_span and tv_chat_message
 *             are passed in arrays and never change.
 * Strings     are UTF-8, and end in NUL unless a size comes with them. Those that go out belong to the
 *             handle that was asked: they live as long as it does, unless the comment says otherwise.
 * Lists       and texts of unknown size: the caller passes (out, capacity) and receives *needed. When
 *             *needed exceeds capacity nothing is written and the call returns TV_CAPACITY, unless the
 *             pointer is NULL and the capacity 0, which asks for the size only and returns TV_OK.
 * Threads     Any function may be called from any thread. Two threads may use one handle at the same time
 *             unless its section says otherwise; calls that cannot overlap wait for each other.
 * Growth      Functions, statuses, dtypes and fields are added, never removed, renumbered or moved, within
 *             an ABI major. @since names the release that brought each.
 */
#ifndef TRIVET_H
#define TRIVET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TV_API
#if defined(_WIN32) && defined(TV_BUILDING)
#define TV_API __declspec(dllexport)
#elif defined(_WIN32)
#define TV_API __declspec(dllimport)
#else
#define TV_API __attribute__((visibility("default")))
#endif
#endif

/* --- status, version, machine ------------------------------------------------------------------------- */

/* What a call came to. Numbers are never reused. @since 0.1 */
typedef int32_t tv_status;
enum {
  TV_OK = 0,
  TV_INVALID_ARGUMENT = 1, /* an argument is wrong */
  TV_SHAPE = 2,            /* shapes do not fit the operation */
  TV_DTYPE = 3,            /* dtypes do not fit the operation */
  TV_UNSUPPORTED = 4,      /* known, but this build does not have it */
  TV_BAD_GGUF = 5,         /* the file is not what it claims to be */
  TV_BAD_PLAN = 6,         /* the plan's bytes are malformed or do not verify */
  TV_TOKENIZER = 7,        /* a tokenizer's tables are wrong, or there is no such token */
  TV_BAD_MODEL = 8,        /* metadata, tensors and plan do not make a model */
  TV_CAPACITY = 9,         /* context, pages, sessions or the caller's buffer are full */
  TV_NON_FINITE = 10,      /* a value that had to be finite was not */
  TV_IO = 11,              /* the operating system refused: open, read, map */
  TV_DEVICE_UNAVAILABLE = 12,
  TV_INTERNAL = 13,  /* a fault in trivet itself; please report it */
  TV_CANCELLED = 14, /* another thread asked the running call to stop */
  TV_OUT_OF_MEMORY = 15,
  TV_CHAT_TEMPLATE = 16 /* the chat format cannot express these messages */
};

/* The text of the last failure on the calling thread: which call, what it got, what it wanted. Never NULL;
 * "" before the first failure. Valid until the thread's next failing call. @since 0.1 */
TV_API const char* tv_last_error(void);

/* The release of the library, e.g. "0.1.0". @since 0.1 */
TV_API const char* tv_version(void);

/* The ABI that this header describes: major << 16 | minor. @since 0.1 */
#define TV_ABI_VERSION 0x00000001u

/* The ABI of the loaded library. A program works with any library of its own major and at least its minor.
 * @since 0.1 */
TV_API uint32_t tv_abi_version(void);

/* The processor, as this library uses it. Strings are static. @since 0.1 */
typedef struct tv_cpu_info {
  size_t struct_size;
  const char*
      isa; /* kernels in use: "scalar", "avx2", "avx512", "amx", "neon"; TRIVET_ISA forces a lower one */
  const char* features; /* what the processor has, e.g. "avx2 fma f16c avx512f avx512_vnni" */
  int32_t threads;      /* used where an option says 0: TRIVET_THREADS, else the physical cores allowed */
  int32_t processors;   /* logical processors that this process may use: no more threads than these run */
} tv_cpu_info;

/* Fills *out. Errors: TV_UNSUPPORTED if TRIVET_ISA names a set that the processor lacks. @since 0.1 */
TV_API tv_status tv_cpu_get_info(tv_cpu_info* out);

/* What the processor and its memory can do at most, per second: the bounds to hold a speed against. A
 * multiply-add counts as two operations. @since 0.1 */
typedef struct tv_cpu_rates {
  size_t struct_size;
  double read_bytes; /* bytes of memory read once, in order: bounds decoding */
  double f32;        /* operations on float32 */
  double bf16;       /* on products of bfloat16 summed in float32 */
  double i8;         /* on products of int8 summed in int32 */
} tv_cpu_rates;

/* Measures them with so many threads (0: as tv_cpu_info says) and with the instructions that its `isa`
 * allows. Takes about a second and, meanwhile, 192 MiB. Errors: TV_INVALID_ARGUMENT (threads);
 * TV_OUT_OF_MEMORY.
 * @since 0.1 */
TV_API tv_status tv_cpu_measure(int32_t threads, tv_cpu_rates* out);

/* --- tensors ------------------------------------------------------------------------------------------ */

/* Element types; packed block formats from 32 on, to 47 laid out as in GGUF files. Ids are never reused.
 * @since 0.1
 */
typedef int32_t tv_dtype;
enum {
  TV_F32 = 1,
  TV_F16 = 2,
  TV_BF16 = 3,
  TV_F64 = 4,
  TV_I8 = 5,
  TV_U8 = 6,
  TV_I32 = 7,
  TV_I64 = 8,
  TV_BOOL = 9,
  TV_Q4_0 = 32,
  TV_Q4_1 = 33,
  TV_Q5_0 = 34,
  TV_Q5_1 = 35,
  TV_Q8_0 = 36,
  TV_Q2_K = 37,
  TV_Q3_K = 38,
  TV_Q4_K = 39,
  TV_Q5_K = 40,
  TV_Q6_K = 41,
  TV_IQ4_NL = 42,
  TV_NF4_32 = 48, /* NF4 of QLoRA in blocks of 32, scales in float32; then of 64, 128 ... */
  TV_NF4_64 = 49,
  TV_NF4_128 = 50,
  TV_NF4_256 = 51,
  TV_NF4_512 = 52,
  TV_NF4_1024 = 53,
  TV_NF4_2048 = 54,
  TV_NF4_4096 = 55,
  TV_NF4D_32 = 56, /* the same with scales in 8 bits, double-quantised */
  TV_NF4D_64 = 57,
  TV_NF4D_128 = 58,
  TV_NF4D_256 = 59,
  TV_NF4D_512 = 60,
  TV_NF4D_1024 = 61,
  TV_NF4D_2048 = 62,
  TV_NF4D_4096 = 63
};

/* How an element type is stored. @since 0.1 */
typedef struct tv_dtype_info {
  size_t struct_size;
  const char* name; /* "f32", "q4_k"; static */
  int32_t block;    /* elements per block; 1 for dense types */
  int32_t nbytes;   /* bytes per block */
  int32_t group;    /* 0; or behind its blocks a tensor has a float32, and one for every so many blocks */
} tv_dtype_info;

/* Fills *out. Errors: TV_DTYPE if there is no such dtype. @since 0.1 */
TV_API tv_status tv_dtype_get_info(tv_dtype dtype, tv_dtype_info* out);

enum { TV_MAX_RANK = 8 };

/* A view of memory owned elsewhere, of the shape of DLPack's DLTensor, row-major. A packed dtype has its
 * logical shape; the last size divides by the block. This struct never changes. @since 0.1 */
typedef struct tv_tensor {
  void* data; /* may be NULL if a size is 0 */
  tv_dtype dtype;
  int32_t rank;           /* 0 to TV_MAX_RANK */
  const int64_t* shape;   /* [rank]; may be NULL if rank is 0 */
  const int64_t* strides; /* [rank] in elements, or NULL: dense. Only dense memory is accepted; others get
                             TV_INVALID_ARGUMENT */
} tv_tensor;

/* What it cost to quantise a tensor: its relative error is the root of errors / squares. @since 0.1 */
typedef struct tv_quantize_info {
  size_t struct_size;
  double squares; /* the sum of the squares of the values */
  double errors;  /* the sum of the squares of the differences between what was written and the values */
} tv_quantize_info;

/* Writes the values of a tensor as another dtype: packed up to 47, f32, f16 or bf16. Both tensors are of such
 * dtypes, of one shape, of at least one dimension; out's memory is the caller's. Packed blocks hold the codes
 * nearest to the values under scales searched to err least in their squares; with `weights`, one for each
 * element of a row, not negative, the squares of errors in a column count by these (NULL: all alike; q8_0 is
 * not searched). The bytes are the same on every machine and for every number of threads (0: as tv_cpu_info
 * says). info may be NULL.
 * Errors, after which out is undefined: TV_DTYPE; TV_SHAPE (not one shape, or rows that blocks do not
 * divide); TV_NON_FINITE (a value or weight is infinite or NaN, or a scale or value too large for the dtype;
 * says which); TV_INVALID_ARGUMENT (threads; a negative weight); TV_OUT_OF_MEMORY. @since 0.1 */
TV_API tv_status tv_tensor_quantize(const tv_tensor* values, const float* weights, int32_t threads,
                                    const tv_tensor* out, tv_quantize_info* info);

/* *supported = 1 if this build has a kernel of row `name` for these dtypes, else 0. inputs: [n_inputs],
 * outputs: [n_outputs] of the row. Errors: TV_DTYPE if an id is not a dtype. @since 0.1 */
TV_API tv_status tv_kernel_supports(const char* name, const tv_dtype* inputs, size_t n_inputs,
                                    const tv_dtype* outputs, size_t n_outputs, int32_t* supported);

/* --- plans -------------------------------------------------------------------------------------------- */

/* A verified graph (docs/plan-format.md). Never changes after it is loaded. */
typedef struct tv_plan tv_plan;

/* Loads and verifies a plan; the bytes are copied. Errors: TV_BAD_PLAN names the field, what it was and what
 * is allowed; TV_UNSUPPORTED names a row or dtypes that this build has no kernel for. @since 0.1 */
TV_API tv_status tv_plan_load(const void* bytes, size_t size, tv_plan** out);

/* Releases a plan; NULL is allowed. Programs and engines made from it stay valid. @since 0.1 */
TV_API tv_status tv_plan_free(tv_plan* plan);

/* How much of everything a plan has. @since 0.1 */
typedef struct tv_plan_info {
  size_t struct_size;
  const char* name;
  size_t n_dims;
  size_t n_inputs;
  size_t n_weights;
  size_t n_states;
  size_t n_outputs;
  size_t n_values;
  size_t n_ops;
} tv_plan_info;

/* Fills *out. The name belongs to the plan. @since 0.1 */
TV_API tv_status tv_plan_get_info(const tv_plan* plan, tv_plan_info* out);

/* A symbolic dimension: T tokens, N pages. @since 0.1 */
typedef struct tv_dim_info {
  size_t struct_size;
  const char* name;
  int64_t smallest;
  int64_t largest;
} tv_dim_info;

/* Fills *out for symbolic dimension `index`. Errors: TV_INVALID_ARGUMENT if index is not below n_dims.
 * @since 0.1 */
TV_API tv_status tv_plan_get_dim(const tv_plan* plan, size_t index, tv_dim_info* out);

/* One size of a shape: scale * dimension + offset. This struct never changes. @since 0.1 */
typedef struct tv_size {
  int64_t scale;  /* 0 if the size is fixed */
  int64_t offset; /* the size, if it is fixed */
  int64_t dim;    /* index of the symbolic dimension, or -1 */
} tv_size;

/* Which of a plan's named values are meant. @since 0.1 */
typedef int32_t tv_value_kind;
enum {
  TV_INPUT = 0,  /* given at every run */
  TV_WEIGHT = 1, /* found by name in the model, never written */
  TV_STATE = 2,  /* kept between runs */
  TV_OUTPUT = 3  /* given back by every run */
};

/* One named value of a plan. Name and sizes belong to the plan. @since 0.1 */
typedef struct tv_value_info {
  size_t struct_size;
  const char* name;
  tv_dtype dtype;
  int32_t rank;
  const tv_size* sizes; /* [rank] */
} tv_value_info;

/* Fills *out for value `index` of a kind, in the plan's order, which is the order that tv_program_run takes.
 * Errors: TV_INVALID_ARGUMENT for an unknown kind or an index past the last. @since 0.1 */
TV_API tv_status tv_plan_get_value(const tv_plan* plan, tv_value_kind kind, size_t index, tv_value_info* out);

/* The plan as text for people, a line per value and op; not for programs to read. @since 0.1 */
TV_API tv_status tv_plan_describe(const tv_plan* plan, char* out, size_t capacity, size_t* needed);

/* --- models ------------------------------------------------------------------------------------------- */

/* Named tensors and metadata: an open GGUF file, or tensors that the caller names. */
typedef struct tv_model tv_model;

/* Opens a GGUF file. It is mapped, not read: pages come in as they are used. Everything in its header is
 * checked before anything is believed. Once another program has cut it short, calls that run the model or
 * its tokenizer give TV_IO; what is cut short during such a call ends this process with SIGBUS, as with every
 * mapped file: write a new file and rename it, as trivet itself does.
 * Errors: TV_IO; TV_BAD_GGUF (names the field); TV_UNSUPPORTED (one part of a split model). @since 0.1 */
TV_API tv_status tv_model_open(const char* path, tv_model** out);

/* A model without a file, for tv_model_add_tensor. @since 0.1 */
TV_API tv_status tv_model_create(tv_model** out);

/* Releases a model; NULL is allowed. What was made from it stays valid, and keeps the file mapped. @since 0.1
 */
TV_API tv_status tv_model_free(tv_model* model);

/* Flags of tv_model_add_tensor. @since 0.1 */
enum {
  TV_COPY = 1 /* copy the memory; else it stays the caller's, who keeps it, unchanged, until the model and
                 all that was made from it are freed */
};

/* Adds a tensor. Errors: TV_INVALID_ARGUMENT (the name is empty or taken; not dense; unknown flags);
 * TV_DTYPE; TV_SHAPE. @since 0.1 */
TV_API tv_status tv_model_add_tensor(tv_model* model, const char* name, const tv_tensor* tensor,
                                     uint32_t flags);

/* What a model holds. @since 0.1 */
typedef struct tv_model_info {
  size_t struct_size;
  const char* path; /* "" for a model without a file */
  size_t n_tensors;
  size_t n_metadata;
  uint64_t tensor_bytes;   /* of all tensors together */
  uint64_t prepared_bytes; /* of weights that kernels have arranged anew, shared by all programs */
} tv_model_info;

/* Fills *out. The path belongs to the model. @since 0.1 */
TV_API tv_status tv_model_get_info(const tv_model* model, tv_model_info* out);

/* Tensor `index`, in the file's order: its name, and a view of it (read only). Either result may be NULL.
 * Errors: TV_INVALID_ARGUMENT (no such index); TV_UNSUPPORTED (a tensor type that this build does not know;
 * *name is set all the same). @since 0.1 */
TV_API tv_status tv_model_get_tensor(const tv_model* model, size_t index, const char** name,
                                     tv_tensor* tensor);

/* The tensor of that name (read only).
 * Errors: TV_BAD_MODEL (no such tensor); TV_UNSUPPORTED (its type is not known). @since 0.1 */
TV_API tv_status tv_model_find_tensor(const tv_model* model, const char* name, tv_tensor* tensor);

/* A string of the file's metadata: *found = 1, and *text (*size bytes, without a NUL, in the mapped file) is
 * set; or *found = 0, and it is not. Errors: TV_BAD_MODEL if the value is of another type. @since 0.1 */
TV_API tv_status tv_model_get_text(const tv_model* model, const char* key, const char** text, size_t* size,
                                   int32_t* found);

/* An integer of the file's metadata, of any width, or a truth value; *found as above.
 * Errors: TV_BAD_MODEL if the value is of another type; TV_BAD_GGUF if it is beyond 63 bits. @since 0.1 */
TV_API tv_status tv_model_get_integer(const tv_model* model, const char* key, int64_t* value, int32_t* found);

/* A number of the file's metadata, real or integer; *found as above.
 * Errors: TV_BAD_MODEL if the value is of another type. @since 0.1 */
TV_API tv_status tv_model_get_real(const tv_model* model, const char* key, double* value, int32_t* found);

/* Loads the plan that the file carries as metadata `trivet.plan.<name>`, e.g. "serve".
 * Errors: TV_BAD_MODEL (the file carries no such plan); else as tv_plan_load. @since 0.1 */
TV_API tv_status tv_model_load_plan(const tv_model* model, const char* name, tv_plan** out);

/* --- programs ----------------------------------------------------------------------------------------- */

/* A plan made ready to run: kernels chosen, weights found, state allocated. Runs of one program wait for each
 * other; programs of one thread count share their threads. */
typedef struct tv_program tv_program;

/* The size of a symbolic dimension. This struct never changes. @since 0.1 */
typedef struct tv_dim {
  const char* name;
  int64_t size;
} tv_dim;

/* How a program is made; all zeros are the defaults. @since 0.1 */
typedef struct tv_program_options {
  size_t struct_size;
  int32_t threads;    /* 0: as tv_cpu_info says */
  const tv_dim* dims; /* [n_dims] fixed sizes; all that states have must be here */
  size_t n_dims;
} tv_program_options;

/* Makes a program. model may be NULL for a plan without weights; options may be NULL. State starts as zeros.
 * Errors: TV_BAD_MODEL (a weight is not in the model, or differs in dtype or shape; names both);
 * TV_INVALID_ARGUMENT (a dimension is unknown, out of range, or given by no input and no option);
 * TV_OUT_OF_MEMORY. @since 0.1 */
TV_API tv_status tv_program_create(const tv_plan* plan, tv_model* model, const tv_program_options* options,
                                   tv_program** out);

/* Releases a program, its state and the views it gave out; NULL is allowed. @since 0.1 */
TV_API tv_status tv_program_free(tv_program* program);

/* Runs the plan. inputs: [n_inputs] in the plan's order; their shapes settle the symbolic dimensions.
 * outputs: [n_outputs] in the plan's order. An output whose data is NULL is filled in as a view that belongs
 * to the program and is valid until its next run. Any other is the caller's: dtype, rank and shape must be
 * what comes out, and the values are written there; after a failed run they are undefined.
 * Updates of the state take place at the end, all or none; what the plan updates in place may have changed
 * when a run fails.
 * Errors: TV_INVALID_ARGUMENT (counts, sizes, an index in the data out of range: names the op); TV_DTYPE;
 * TV_SHAPE (shapes do not fit an op, before anything is computed); TV_CANCELLED; TV_OUT_OF_MEMORY. @since 0.1
 */
TV_API tv_status tv_program_run(tv_program* program, const tv_tensor* inputs, size_t n_inputs,
                                tv_tensor* outputs, size_t n_outputs);

/* Lays out the memory of a run with inputs of these dtypes and shapes, whose data may be NULL, and checks
 * that the run could begin; computes nothing. *arena_bytes: what its temporaries take. The next run with
 * these shapes begins sooner. Errors: as tv_program_run. @since 0.1 */
TV_API tv_status tv_program_reserve(tv_program* program, const tv_tensor* inputs, size_t n_inputs,
                                    uint64_t* arena_bytes);

/* Asks the running tv_program_run to stop after the op it is in. Without one, does nothing. @since 0.1 */
TV_API tv_status tv_program_cancel(tv_program* program);

/* A view of state `name`, to read and write between runs. The memory stays where it is as long as the
 * program lives. Errors: TV_INVALID_ARGUMENT if there is no such state. @since 0.1 */
TV_API tv_status tv_program_get_state(tv_program* program, const char* name, tv_tensor* out);

/* What a program uses. @since 0.1 */
typedef struct tv_program_info {
  size_t struct_size;
  int32_t threads;
  uint64_t arena_bytes;  /* for temporaries, so far */
  uint64_t state_bytes;  /* address space; pages count once they are touched */
  uint64_t weight_bytes; /* of weights that a run reads where they lie, but for rows that are looked up */
} tv_program_info;

/* Fills *out. @since 0.1 */
TV_API tv_status tv_program_get_info(const tv_program* program, tv_program_info* out);

/* --- engines and sessions ----------------------------------------------------------------------------- */

/* An engine runs a serving plan (docs/plan-format.md) for many sessions at once; a session is one text: a
 * list of tokens, with the keys and values of each held in pages that sessions may share. Logits have the
 * same bits alone or in a batch, from prefill or from decode, for every number of threads.
 * The plan says what keys and values are kept in: f32, f16, bf16 or q8_0 (blocks of 32 elements of a head).
 * Calls on one engine and its sessions wait for each other, except tv_engine_cancel. */
typedef struct tv_engine tv_engine;
typedef struct tv_session tv_session;

/* How an engine is made; all zeros are the defaults. @since 0.1 */
typedef struct tv_engine_options {
  size_t struct_size;
  int32_t threads;      /* 0: as tv_cpu_info says */
  int32_t max_sessions; /* 0: 8 */
  int64_t context;      /* most tokens of one session; 0: <architecture>.context_length of the model */
  int64_t pages;        /* pages in the pool; 0: enough for max_sessions of full context */
} tv_engine_options;

/* Makes an engine. plan may be NULL: then the model's own plan "serve". options may be NULL. Pages take
 * memory only once they are used. Errors: TV_BAD_MODEL (no plan; or not a serving plan, says why; or no
 * context length); TV_INVALID_ARGUMENT (an option; names it and what is allowed); as tv_program_create.
 * @since 0.1 */
TV_API tv_status tv_engine_create(tv_model* model, const tv_plan* plan, const tv_engine_options* options,
                                  tv_engine** out);

/* Releases an engine; NULL is allowed. Its sessions stay valid. @since 0.1 */
TV_API tv_status tv_engine_free(tv_engine* engine);

/* What an engine has, and what of it is in use. @since 0.1 */
typedef struct tv_engine_info {
  size_t struct_size;
  int32_t threads;
  int32_t n_vocab;
  int32_t max_sessions;
  int32_t n_sessions; /* open now */
  int64_t context;
  int64_t page;         /* tokens per page */
  int64_t pages;        /* in the pool */
  int64_t pages_free;   /* not held by any session */
  uint64_t page_bytes;  /* keys and values of one page, all layers */
  uint64_t arena_bytes; /* for temporaries, so far */
} tv_engine_info;

/* Fills *out. @since 0.1 */
TV_API tv_status tv_engine_get_info(const tv_engine* engine, tv_engine_info* out);

/* Tokens to append to one session, and the rows of logits wanted. This struct never changes. @since 0.1 */
typedef struct tv_step {
  tv_session* session;
  const int32_t* ids; /* [n_ids], at least one */
  size_t n_ids;
  const int32_t* rows; /* [n_rows] indices into ids: after which of them logits are wanted, in this order */
  size_t n_rows;
} tv_step;

/* Advances several sessions together. steps: [n_steps], each with another session of this engine.
 * logits: [sum of n_rows, n_vocab], or NULL if no rows are wanted. Long work is cut into runs of at most 256
 * tokens; the bits do not depend on where. On any failure no session has changed, and logits are undefined.
 * Errors: TV_INVALID_ARGUMENT (an id outside the vocabulary or a row outside ids: names index and value; a
 * session twice, or of another engine); TV_CAPACITY (context or pages are full; gives the numbers);
 * TV_CANCELLED; TV_OUT_OF_MEMORY. @since 0.1 */
TV_API tv_status tv_engine_step(tv_engine* engine, const tv_step* steps, size_t n_steps, float* logits);

/* Makes the call that now runs on the engine, if any, return TV_CANCELLED at the next op, its sessions
 * unchanged. For another thread, or a signal handler. @since 0.1 */
TV_API tv_status tv_engine_cancel(tv_engine* engine);

/* An empty session. Errors: TV_CAPACITY if max_sessions are open. @since 0.1 */
TV_API tv_status tv_session_create(tv_engine* engine, tv_session** out);

/* Releases a session and gives its pages back; NULL is allowed. @since 0.1 */
TV_API tv_status tv_session_free(tv_session* session);

/* *length = how many tokens the session holds. @since 0.1 */
TV_API tv_status tv_session_length(const tv_session* session, int64_t* length);

/* Appends ids [n_ids]. logits: [n_vocab] after the last of them, or NULL. Errors as tv_engine_step.
 * @since 0.1 */
TV_API tv_status tv_session_prefill(tv_session* session, const int32_t* ids, size_t n_ids, float* logits);

/* Appends one id. logits: [n_vocab], or NULL. Errors as tv_engine_step. @since 0.1 */
TV_API tv_status tv_session_decode(tv_session* session, int32_t id, float* logits);

/* Appends ids [n_ids]; logits: [n_rows, n_vocab] after each ids[rows[i]]. Errors as tv_engine_step.
 * @since 0.1 */
TV_API tv_status tv_session_forward(tv_session* session, const int32_t* ids, size_t n_ids,
                                    const int32_t* rows, size_t n_rows, float* logits);

/* Empties the session. @since 0.1 */
TV_API tv_status tv_session_reset(tv_session* session);

/* Forgets all but the first n tokens. Errors: TV_INVALID_ARGUMENT if it has fewer. @since 0.1 */
TV_API tv_status tv_session_truncate(tv_session* session, int64_t n);

/* A second session with the same tokens. Pages are shared until one of the two writes to them.
 * Errors: TV_CAPACITY if max_sessions are open. @since 0.1 */
TV_API tv_status tv_session_fork(const tv_session* session, tv_session** out);

/* --- text: tokenizer, streaming decode, sampler, chat format ---------------------------------------------
 *
 * Text is UTF-8 with an explicit length in bytes; it need not end in a NUL and may contain one.
 *
 * A tokenizer and a chat format never change after they are opened: any number of threads may use one at
 * a time. A stream and a sampler belong to one thread at a time.
 */

typedef struct tv_tokenizer tv_tokenizer;
typedef struct tv_tokenizer_stream tv_tokenizer_stream;
typedef struct tv_sampler tv_sampler;
typedef struct tv_chat tv_chat;

/* Flags of tv_tokenizer_encode. @since 0.1 */
enum {
  TV_ADD_SPECIAL = 1,  /* the BOS and EOS ids that the file's metadata asks for */
  TV_PARSE_SPECIAL = 2 /* the text of control tokens becomes their id; else it is plain text */
};

/* Flags of tv_tokenizer_decode and tv_tokenizer_stream_open. @since 0.1 */
enum {
  TV_SKIP_SPECIAL = 1, /* control and unknown tokens give no text; else their own text */
  TV_CONTINUATION = 2  /* the ids continue a text: a first space is text, not the prefix encode puts there */
};

/* Kinds of token, numbered as in GGUF files. @since 0.1 */
typedef enum tv_token_kind {
  TV_TOKEN_NORMAL = 1,
  TV_TOKEN_UNKNOWN = 2,
  TV_TOKEN_CONTROL = 3,
  TV_TOKEN_USER_DEFINED = 4,
  TV_TOKEN_UNUSED = 5,
  TV_TOKEN_BYTE = 6
} tv_token_kind;

/* What a tokenizer is. Ids that the file does not name are -1. @since 0.1 */
typedef struct tv_tokenizer_info {
  size_t struct_size; /* in: sizeof(tv_tokenizer_info) */
  const char* model;  /* "gpt2" (byte-level BPE), "llama" (SentencePiece BPE) or "t5" (its unigram model) */
  const char* pre;    /* the pre-tokeniser's name, "" but for "gpt2"; both belong to the tokenizer */
  int32_t n_vocab;
  int32_t bos_id;
  int32_t eos_id;
  int32_t unk_id;
  int32_t pad_id;
  int32_t add_bos; /* 1: TV_ADD_SPECIAL puts bos_id first */
  int32_t add_eos; /* 1: TV_ADD_SPECIAL puts eos_id last */
  int32_t add_space_prefix;
} tv_tokenizer_info;

/* One token. @since 0.1 */
typedef struct tv_token_info {
  size_t struct_size; /* in: sizeof(tv_token_info) */
  const char* text;   /* as the file spells it (byte-level or with U+2581); not NUL-terminated */
  size_t text_size;   /* bytes of text; both belong to the tokenizer */
  int32_t kind;       /* tv_token_kind */
  int32_t is_end;     /* 1: generation ends here (EOS, end of turn, ...) */
  float score;        /* 0 where the file has no scores */
} tv_token_info;

/* Opens the tokenizer of a GGUF file. The file is mapped, not copied.
 * Errors: TV_IO; TV_BAD_GGUF; TV_TOKENIZER (tables are wrong; names the field); TV_UNSUPPORTED (a
 * tokenizer model or a pre-tokeniser that this build does not have; names it).
 * *out is released by tv_tokenizer_free. @since 0.1 */
TV_API tv_status tv_tokenizer_open(const char* path, tv_tokenizer** out);

/* The tokenizer of an open model; it shares the model's mapping and may outlive the model.
 * Errors as tv_tokenizer_open. @since 0.1 */
TV_API tv_status tv_tokenizer_from_model(const tv_model* model, tv_tokenizer** out);

/* Releases a tokenizer; NULL is allowed. Streams and chat formats made from it stay valid. @since 0.1 */
TV_API tv_status tv_tokenizer_free(tv_tokenizer* tokenizer);

/* Fills *out as far as out->struct_size reaches. @since 0.1 */
TV_API tv_status tv_tokenizer_get_info(const tv_tokenizer* tokenizer, tv_tokenizer_info* out);

/* Fills *out for token `id`. Errors: TV_TOKENIZER if there is no such id. @since 0.1 */
TV_API tv_status tv_tokenizer_get_token(const tv_tokenizer* tokenizer, int32_t id, tv_token_info* out);

/* *id = the token that the file spells `text`, or -1 if there is none. @since 0.1 */
TV_API tv_status tv_tokenizer_find(const tv_tokenizer* tokenizer, const char* text, size_t text_size,
                                   int32_t* id);

/* The ids that end a reply, in order: EOS, end of turn and their like. ids: [capacity].
 * Errors: TV_CAPACITY. @since 0.1 */
TV_API tv_status tv_tokenizer_get_ends(const tv_tokenizer* tokenizer, int32_t* ids, size_t capacity,
                                       size_t* needed);

/* Text to ids. flags: TV_ADD_SPECIAL | TV_PARSE_SPECIAL. ids: [capacity], *needed: how many there are.
 * Errors: TV_INVALID_ARGUMENT (not UTF-8; names the byte); TV_TOKENIZER (no token and no unknown token for
 * a character); TV_CAPACITY. @since 0.1 */
TV_API tv_status tv_tokenizer_encode(const tv_tokenizer* tokenizer, const char* text, size_t text_size,
                                     uint32_t flags, int32_t* ids, size_t capacity, size_t* needed);

/* Some bytes of a text, from begin up to end. This struct never changes. @since 0.1 */
typedef struct tv_span {
  size_t begin;
  size_t end;
} tv_span;

/* The same, where the bytes of `literal` ([n_literal], in order and apart) never become control tokens, not
 * even in part: what a user wrote, between what a program put around it.
 * Errors: as tv_tokenizer_encode; TV_INVALID_ARGUMENT (a span ends before it begins or after the text, or
 * begins before the one in front of it ends). @since 0.1 */
TV_API tv_status tv_tokenizer_encode_literal(const tv_tokenizer* tokenizer, const char* text,
                                             size_t text_size, uint32_t flags, const tv_span* literal,
                                             size_t n_literal, int32_t* ids, size_t capacity, size_t* needed);

/* Ids to text. out: [capacity] bytes, no NUL is added. Bytes that are not UTF-8 become U+FFFD.
 * flags: TV_SKIP_SPECIAL. Errors: TV_TOKENIZER (no such id); TV_CAPACITY. @since 0.1 */
TV_API tv_status tv_tokenizer_decode(const tv_tokenizer* tokenizer, const int32_t* ids, size_t n_ids,
                                     uint32_t flags, char* out, size_t capacity, size_t* needed);

/* The bytes that token `id` stands for; they need not be whole UTF-8 characters.
 * Errors: TV_TOKENIZER (no such id); TV_CAPACITY. @since 0.1 */
TV_API tv_status tv_tokenizer_token_bytes(const tv_tokenizer* tokenizer, int32_t id, char* out,
                                          size_t capacity, size_t* needed);

/* Opens a streaming decoder: ids in, whole UTF-8 characters out. flags as tv_tokenizer_decode.
 * What it emits, put together, equals tv_tokenizer_decode of all the ids. @since 0.1 */
TV_API tv_status tv_tokenizer_stream_open(const tv_tokenizer* tokenizer, uint32_t flags,
                                          tv_tokenizer_stream** out);

/* Feeds one id. *text (*text_size bytes, maybe none) is what can be shown now; it belongs to the stream
 * and is valid until its next call. Errors: TV_TOKENIZER (no such id; nothing changes). @since 0.1 */
TV_API tv_status tv_tokenizer_stream_push(tv_tokenizer_stream* stream, int32_t id, const char** text,
                                          size_t* text_size);

/* Ends the text: bytes still held back come out as U+FFFD. The stream may then be used again. @since 0.1 */
TV_API tv_status tv_tokenizer_stream_flush(tv_tokenizer_stream* stream, const char** text, size_t* text_size);

/* Releases a stream; NULL is allowed. @since 0.1 */
TV_API tv_status tv_tokenizer_stream_free(tv_tokenizer_stream* stream);

/* How the next token is chosen, in this order:
 *   1. repeat_penalty: a logit l of a token seen anywhere (prompt or reply) becomes l / p if l > 0, else
 *      l * p; frequency_penalty * count and presence_penalty are subtracted for tokens of the reply
 *   2. bias is added
 *   3. temperature 0: the largest logit wins, the lower id on ties; nothing below applies
 *   4. top_k: the k largest stay          (0: all)
 *   5. top_p: the fewest most probable whose probabilities reach p stay (1: all)
 *   6. min_p: tokens at least min_p times as probable as the best stay (0: all)
 *   7. logits are divided by the temperature and one is drawn
 * Filters see probabilities at temperature 1, as in llama.cpp, so that a threshold means the same at
 * every temperature. @since 0.1 */
typedef struct tv_sampler_options {
  size_t struct_size;      /* sizeof(tv_sampler_options) */
  float temperature;       /* >= 0 */
  int32_t top_k;           /* >= 0 */
  float top_p;             /* (0, 1] */
  float min_p;             /* [0, 1] */
  float repeat_penalty;    /* > 0; 1: none */
  float presence_penalty;  /* finite; 0: none */
  float frequency_penalty; /* finite; 0: none */
  uint64_t seed;           /* the same seed draws the same numbers on every machine */
  const int32_t* bias_ids; /* [n_bias] token ids */
  const float* bias;       /* [n_bias] added to their logits; -INFINITY forbids a token */
  size_t n_bias;
} tv_sampler_options;

/* Defaults: temperature 0.2, top_k 40, top_p 0.95, min_p 0.05, repeat_penalty 1, the rest 0.
 * Sets struct_size. @since 0.1 */
TV_API tv_status tv_sampler_options_init(tv_sampler_options* options);

/* Opens a sampler; options may be NULL (the defaults) and are copied, with the bias arrays.
 * Errors: TV_INVALID_ARGUMENT names the option, what it was and what is allowed. @since 0.1 */
TV_API tv_status tv_sampler_open(const tv_sampler_options* options, tv_sampler** out);

/* Tells the sampler of tokens in the context: generated = 0 for the prompt's, 1 for the reply's. Penalties
 * see them from then on. tv_sampler_sample does not do this by itself. @since 0.1 */
TV_API tv_status tv_sampler_accept(tv_sampler* sampler, const int32_t* ids, size_t n_ids, int32_t generated);

/* Chooses a token from one row of logits, [n_vocab], which is not changed. -INFINITY forbids a token.
 * Every call with temperature > 0 takes one number from the random stream.
 * Errors: TV_NON_FINITE (a NaN or +infinity, or every token is forbidden; names the id);
 * TV_INVALID_ARGUMENT (n_vocab is 0; a bias or accepted id beyond it). @since 0.1 */
TV_API tv_status tv_sampler_sample(tv_sampler* sampler, const float* logits, size_t n_vocab, int32_t* id);

/* Forgets accepted tokens and starts the random stream again. @since 0.1 */
TV_API tv_status tv_sampler_reset(tv_sampler* sampler);

/* Releases a sampler; NULL is allowed. @since 0.1 */
TV_API tv_status tv_sampler_free(tv_sampler* sampler);

/* One message of a conversation. Sizes are in bytes; nothing is kept after the call. @since 0.1 */
typedef struct tv_chat_message {
  const char* role; /* NUL-terminated: "system", "user", "assistant", "tool" */
  const char* content;
  size_t content_size;
} tv_chat_message;

/* Flags of tv_chat_format and tv_chat_encode. @since 0.1 */
enum {
  TV_ADD_GENERATION = 1 /* end with the text that opens the assistant's turn */
};

/* The chat format that `trivet export` stored in the tokenizer's file.
 * Errors: TV_UNSUPPORTED if it stored none (with the reason it gave). @since 0.1 */
TV_API tv_status tv_chat_open(const tv_tokenizer* tokenizer, tv_chat** out);

/* Messages to the text that the file's chat template gives. messages: [n_messages].
 * Errors: TV_CHAT_TEMPLATE (a role the format does not have); TV_INVALID_ARGUMENT (not UTF-8); TV_CAPACITY.
 * @since 0.1 */
TV_API tv_status tv_chat_format(const tv_chat* chat, const tv_chat_message* messages, size_t n_messages,
                                uint32_t flags, char* out, size_t capacity, size_t* needed);

/* Messages to ids. Control tokens are recognised in the format's own text only: a message that spells
 * one stays plain text and cannot end its turn. Errors as tv_chat_format. @since 0.1 */
TV_API tv_status tv_chat_encode(const tv_chat* chat, const tv_chat_message* messages, size_t n_messages,
                                uint32_t flags, int32_t* ids, size_t capacity, size_t* needed);

/* Releases a chat format; NULL is allowed. @since 0.1 */
TV_API tv_status tv_chat_free(tv_chat* chat);

#ifdef __cplusplus
}
#endif

#endif /* TRIVET_H */
