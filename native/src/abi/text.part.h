/* --- text: tokenizer, streaming decode, sampler, chat format ---------------------------------------------
 *
 * Text is UTF-8 with an explicit length in bytes; it need not end in a NUL and may contain one.
 *
 * Results of unknown length: the caller passes (pointer, capacity) and receives *needed. When *needed
 * exceeds capacity nothing is written and the call returns TV_CAPACITY, unless the pointer is NULL and
 * the capacity 0, which asks for the length only and returns TV_OK.
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
  TV_ADD_SPECIAL = 1,   /* the BOS and EOS ids that the file's metadata asks for */
  TV_PARSE_SPECIAL = 2  /* the text of control tokens becomes their id; else it is plain text */
};

/* Flags of tv_tokenizer_decode and tv_tokenizer_stream_open. @since 0.1 */
enum {
  TV_SKIP_SPECIAL = 1 /* control and unknown tokens give no text; else their own text */
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
  const char* model;  /* "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE); belongs to the tokenizer */
  const char* pre;    /* the pre-tokeniser's name, "" for "llama" */
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

/* Text to ids. flags: TV_ADD_SPECIAL | TV_PARSE_SPECIAL. ids: [capacity], *needed: how many there are.
 * Errors: TV_INVALID_ARGUMENT (not UTF-8; names the byte); TV_TOKENIZER (no token and no unknown token for
 * a character); TV_CAPACITY. @since 0.1 */
TV_API tv_status tv_tokenizer_encode(const tv_tokenizer* tokenizer, const char* text, size_t text_size,
                                     uint32_t flags, int32_t* ids, size_t capacity, size_t* needed);

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
TV_API tv_status tv_tokenizer_stream_flush(tv_tokenizer_stream* stream, const char** text,
                                           size_t* text_size);

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

/* Defaults: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, repeat_penalty 1, the rest 0.
 * Sets struct_size. @since 0.1 */
TV_API tv_status tv_sampler_options_init(tv_sampler_options* options);

/* Opens a sampler; options may be NULL (the defaults) and are copied, with the bias arrays.
 * Errors: TV_INVALID_ARGUMENT names the option, what it was and what is allowed. @since 0.1 */
TV_API tv_status tv_sampler_open(const tv_sampler_options* options, tv_sampler** out);

/* Tells the sampler of tokens in the context: generated = 0 for the prompt's, 1 for the reply's. Penalties
 * see them from then on. tv_sampler_sample does not do this by itself. @since 0.1 */
TV_API tv_status tv_sampler_accept(tv_sampler* sampler, const int32_t* ids, size_t n_ids,
                                   int32_t generated);

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
