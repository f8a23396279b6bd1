/* Several texts advanced by one run of the serving plan, from plain C11: scores each text alone and all of
 * them together, and checks that the logits are the same bytes.
 *
 *   trivet export smollm2-135m -o model.gguf
 *   cc -std=c11 -O2 examples/c/batch.c -o batch \
 *      -I native/include -L build/native -ltrivet -Wl,-rpath,build/native
 *   ./batch model.gguf THREADS "The capital of France is" "Once upon a time" ...
 *
 * Prints the most probable next token of each text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trivet.h"

enum { MAX_TEXTS = 16, MAX_IDS = 1024 };

static void check(tv_status status, const char* what) {
  if (status == TV_OK) return;
  fprintf(stderr, "%s: %s\n", what, tv_last_error());
  exit(1);
}

static tv_session* open_session(tv_engine* engine) {
  tv_session* session = NULL;
  check(tv_session_create(engine, &session), "session");
  return session;
}

/* The logits after the last id: one prefill, or token by token. */
static void alone(tv_engine* engine, const int32_t* ids, size_t n_ids, int by_token, float* logits) {
  tv_session* session = open_session(engine);
  if (by_token)
    for (size_t i = 0; i < n_ids; ++i) check(tv_session_decode(session, ids[i], logits), "decode");
  else
    check(tv_session_prefill(session, ids, n_ids, logits), "prefill");
  tv_session_free(session);
}

int main(int argc, char** argv) {
  const int n = argc - 3;
  if (n < 1 || n > MAX_TEXTS) {
    fprintf(stderr, "usage: batch MODEL THREADS TEXT... (1 to %d texts)\n", MAX_TEXTS);
    return 2;
  }
  tv_model* model = NULL;
  tv_tokenizer* tokenizer = NULL;
  tv_engine* engine = NULL;
  check(tv_model_open(argv[1], &model), argv[1]);
  check(tv_tokenizer_from_model(model, &tokenizer), "tokenizer");
  tv_engine_options options = {.struct_size = sizeof options,
                               .threads = atoi(argv[2]),
                               .max_sessions = MAX_TEXTS + 1,
                               .context = MAX_IDS};
  check(tv_engine_create(model, NULL, &options, &engine), "engine");
  tv_engine_info info = {.struct_size = sizeof info};
  check(tv_engine_get_info(engine, &info), "engine");

  static int32_t ids[MAX_TEXTS][MAX_IDS];
  static int32_t last[MAX_TEXTS];
  tv_step steps[MAX_TEXTS];
  for (int i = 0; i < n; ++i) {
    const char* text = argv[3 + i];
    size_t n_ids = 0;
    check(tv_tokenizer_encode(tokenizer, text, strlen(text), 0, ids[i], MAX_IDS, &n_ids), "encode");
    last[i] = (int32_t)n_ids - 1;
    steps[i] = (tv_step){open_session(engine), ids[i], n_ids, &last[i], 1};
  }
  const size_t row = (size_t)info.n_vocab;
  float* together = malloc(sizeof(float) * row * (size_t)n);
  float* single = malloc(sizeof(float) * row);
  if (together == NULL || single == NULL) return 1;
  check(tv_engine_step(engine, steps, (size_t)n, together), "step");

  int differ = 0;
  for (int i = 0; i < n; ++i) {
    const float* logits = together + row * (size_t)i;
    for (int by_token = 0; by_token < 2; ++by_token) {
      alone(engine, ids[i], steps[i].n_ids, by_token, single);
      differ += memcmp(single, logits, sizeof(float) * row) != 0;
    }
    size_t best = 0;
    for (size_t t = 1; t < row; ++t)
      if (logits[t] > logits[best]) best = t;
    printf("%zu%s", best, i + 1 < n ? " " : "\n");
    tv_session_free(steps[i].session);
  }
  if (differ) fprintf(stderr, "%d of %d rows differ\n", differ, 2 * n);
  free(together);
  free(single);
  tv_engine_free(engine);
  tv_tokenizer_free(tokenizer);
  tv_model_free(model);
  return differ != 0;
}
