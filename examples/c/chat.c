/* Chats with a model from plain C11, without Python.
 *
 *   trivet export smollm2-135m -o model.gguf          writes a file that carries its plan and chat format
 *   cc -std=c11 -O2 examples/c/chat.c -o chat \
 *      -I native/include -L build/native -ltrivet -Wl,-rpath,build/native
 *   ./chat model.gguf "What is the capital of France?"       one answer
 *   ./chat model.gguf                                        a conversation, a line at a time
 *
 * Options before the file: -t TEMPERATURE (0.2; 0 always takes the most probable token), -n MOST TOKENS of a
 * reply (512), -s SEED.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trivet.h"

/* Every call is checked: trivet prints nothing itself. */
static void check(tv_status status, const char* what) {
  if (status == TV_OK) return;
  fprintf(stderr, "%s: %s\n", what, tv_last_error());
  exit(1);
}

static void* grown(void* memory, size_t bytes) {
  void* larger = realloc(memory, bytes);
  if (larger == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return larger;
}

typedef struct {
  tv_tokenizer* tokenizer;
  tv_chat* format;
  tv_engine* engine;
  tv_session* session;
  tv_sampler* sampler;
  float* logits;
  size_t n_vocab;
  tv_chat_message* messages; /* the conversation so far */
  size_t n_messages;
  int32_t* held; /* the ids that the session holds */
  size_t n_held, held_capacity;
  int most_tokens;
} chat;

static void open_chat(chat* c, const char* path, const tv_sampler_options* sampling) {
  tv_model* model = NULL;
  check(tv_model_open(path, &model), path);
  check(tv_tokenizer_from_model(model, &c->tokenizer), "tokenizer");
  check(tv_chat_open(c->tokenizer, &c->format), "chat format");
  tv_engine_options options = {.struct_size = sizeof options, .max_sessions = 1};
  check(tv_engine_create(model, NULL, &options, &c->engine), "engine");
  check(tv_session_create(c->engine, &c->session), "session");
  check(tv_sampler_open(sampling, &c->sampler), "sampler");
  tv_model_free(model); /* the engine keeps what it needs */
  tv_engine_info info = {.struct_size = sizeof info};
  check(tv_engine_get_info(c->engine, &info), "engine");
  c->n_vocab = (size_t)info.n_vocab;
  c->logits = grown(NULL, c->n_vocab * sizeof(float));
}

static void close_chat(chat* c) {
  for (size_t i = 0; i < c->n_messages; ++i) free((char*)c->messages[i].content);
  free(c->messages);
  free(c->held);
  free(c->logits);
  tv_sampler_free(c->sampler);
  tv_session_free(c->session);
  tv_engine_free(c->engine);
  tv_chat_free(c->format);
  tv_tokenizer_free(c->tokenizer);
}

static void say(chat* c, const char* role, const char* text, size_t size) {
  char* copy = grown(NULL, size + 1);
  memcpy(copy, text, size);
  c->messages = grown(c->messages, (c->n_messages + 1) * sizeof *c->messages);
  c->messages[c->n_messages++] = (tv_chat_message){role, copy, size};
}

static void hold(chat* c, const int32_t* ids, size_t n) {
  if (c->n_held + n > c->held_capacity) {
    c->held_capacity = 2 * (c->n_held + n);
    c->held = grown(c->held, c->held_capacity * sizeof *c->held);
  }
  memcpy(c->held + c->n_held, ids, n * sizeof *ids);
  c->n_held += n;
}

/* Feeds the conversation, but for what the session holds already. Leaves the logits of what comes next. */
static void feed(chat* c) {
  size_t n = 0;
  check(tv_chat_encode(c->format, c->messages, c->n_messages, TV_ADD_GENERATION, NULL, 0, &n), "chat format");
  int32_t* ids = grown(NULL, (n + 1) * sizeof *ids);
  check(tv_chat_encode(c->format, c->messages, c->n_messages, TV_ADD_GENERATION, ids, n, &n), "chat format");
  size_t same = 0;
  while (same + 1 < n && same < c->n_held && ids[same] == c->held[same]) ++same;
  check(tv_session_truncate(c->session, (int64_t)same), "session");
  c->n_held = same;
  check(tv_session_prefill(c->session, ids + same, n - same, c->logits), "prefill");
  hold(c, ids + same, n - same);
  check(tv_sampler_reset(c->sampler), "sampler");
  check(tv_sampler_accept(c->sampler, ids, n, 0), "sampler");
  free(ids);
}

static size_t show(const char* text, size_t size, char** reply, size_t n_reply) {
  fwrite(text, 1, size, stdout);
  fflush(stdout);
  *reply = grown(*reply, n_reply + size + 1);
  memcpy(*reply + n_reply, text, size);
  return n_reply + size;
}

/* Answers the last message, token by token, and adds the answer to the conversation. */
static void answer(chat* c) {
  feed(c);
  tv_tokenizer_stream* stream = NULL;
  check(tv_tokenizer_stream_open(c->tokenizer, TV_SKIP_SPECIAL, &stream), "tokenizer");
  char* reply = grown(NULL, 1);
  size_t n_reply = 0, size = 0;
  const char* text = NULL;
  for (int i = 0; i < c->most_tokens; ++i) {
    int32_t id = 0;
    check(tv_sampler_sample(c->sampler, c->logits, c->n_vocab, &id), "sampler");
    tv_token_info token = {.struct_size = sizeof token};
    check(tv_tokenizer_get_token(c->tokenizer, id, &token), "tokenizer");
    if (token.is_end) break;
    check(tv_tokenizer_stream_push(stream, id, &text, &size), "tokenizer");
    n_reply = show(text, size, &reply, n_reply);
    check(tv_sampler_accept(c->sampler, &id, 1, 1), "sampler");
    const tv_status status = tv_session_decode(c->session, id, c->logits);
    if (status == TV_CAPACITY) {
      fprintf(stderr, "\n[the reply ends here: %s]", tv_last_error());
      break;
    }
    check(status, "decode");
    hold(c, &id, 1);
  }
  check(tv_tokenizer_stream_flush(stream, &text, &size), "tokenizer");
  n_reply = show(text, size, &reply, n_reply);
  putchar('\n');
  say(c, "assistant", reply, n_reply);
  free(reply);
  tv_tokenizer_stream_free(stream);
}

/* A line of any length without its end, or NULL at the end of the input. */
static char* read_line(void) {
  size_t n = 0, capacity = 256;
  char* line = grown(NULL, capacity);
  int c;
  while ((c = getchar()) != EOF && c != '\n') {
    if (n + 1 == capacity) line = grown(line, capacity *= 2);
    line[n++] = (char)c;
  }
  line[n] = '\0';
  if (c == '\n' || n > 0) return line;
  free(line);
  return NULL;
}

static int usage(void) {
  fprintf(stderr, "usage: chat [-t TEMPERATURE] [-n MOST_TOKENS] [-s SEED] MODEL.gguf [MESSAGE]\n");
  return 2;
}

int main(int argc, char** argv) {
  chat c = {.most_tokens = 512};
  tv_sampler_options sampling = {.struct_size = sizeof sampling};
  check(tv_sampler_options_init(&sampling), "sampler");
  int at = 1;
  for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
    if (strcmp(argv[at], "-t") == 0)
      sampling.temperature = strtof(argv[at + 1], NULL);
    else if (strcmp(argv[at], "-n") == 0)
      c.most_tokens = atoi(argv[at + 1]);
    else if (strcmp(argv[at], "-s") == 0)
      sampling.seed = strtoull(argv[at + 1], NULL, 10);
    else
      return usage();
  }
  if (at >= argc || argc - at > 2) return usage();
  open_chat(&c, argv[at], &sampling);
  if (argc - at == 2) {
    say(&c, "user", argv[at + 1], strlen(argv[at + 1]));
    answer(&c);
  } else {
    char* line;
    while (fputs("> ", stdout), fflush(stdout), (line = read_line()) != NULL) {
      if (line[0] != '\0') {
        say(&c, "user", line, strlen(line));
        answer(&c);
      }
      free(line);
    }
    putchar('\n');
  }
  close_chat(&c);
  return 0;
}
