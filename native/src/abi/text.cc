// Tokenizers, streams, samplers and chat formats behind the C ABI.
#include <memory>
#include <string>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"
#include "core/file_map.h"
#include "formats/gguf.h"
#include "text/chat.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

struct tv_tokenizer {
  std::shared_ptr<const tv::Tokenizer> tokenizer;
};

struct tv_tokenizer_stream {
  tv::TokenStream stream;
  std::string shown;  // what the last call gave out
};

struct tv_sampler {
  tv::Sampler sampler;
};

struct tv_chat {
  tv::ChatFormat format;
};

namespace {

using tv::Status;
using tv::abi::fill;
using tv::abi::give;
using tv::abi::guard;
using tv::abi::read_options;
using tv::abi::require;

// Text or ids with their size; NULL is allowed only for none.
std::string_view text_of(const char* text, size_t size, const char* call, const char* name) {
  if (size != 0) require(text, call, name);
  return {text == nullptr ? "" : text, size};
}

std::span<const int32_t> ids_of(const int32_t* ids, size_t n, const char* call) {
  if (n != 0) require(ids, call, "ids");
  return {ids, n};
}

std::vector<tv::ByteSpan> spans_of(const tv_span* spans, size_t n, size_t text_size, const char* call) {
  if (n != 0) require(spans, call, "literal");
  std::vector<tv::ByteSpan> out;
  for (size_t i = 0; i < n; ++i) {
    const size_t least = out.empty() ? 0 : out.back().end;
    if (spans[i].begin < least || spans[i].end < spans[i].begin || spans[i].end > text_size)
      tv::fail(Status::invalid_argument, "[%s] literal[%zu] is %zu to %zu; allowed: %zu to %zu, in order",
               call, i, spans[i].begin, spans[i].end, least, text_size);
    out.push_back({spans[i].begin, spans[i].end});
  }
  return out;
}

void check_flags(uint32_t flags, uint32_t known, const char* call) {
  if ((flags & ~known) != 0)
    tv::fail(Status::invalid_argument, "[%s] flags is 0x%x; known are 0x%x", call, flags, known);
}

tv::Tokenizer::DecodeOptions decode_options(uint32_t flags, const char* call) {
  check_flags(flags, TV_SKIP_SPECIAL | TV_CONTINUATION, call);
  return {.skip_special = (flags & TV_SKIP_SPECIAL) != 0, .continuation = (flags & TV_CONTINUATION) != 0};
}

const char* model_name(tv::TokenModel model) {
  return model == tv::TokenModel::bpe ? "gpt2" : model == tv::TokenModel::spm ? "llama" : "t5";
}

void show(tv_tokenizer_stream* stream, const char** text, size_t* text_size) {
  *text = stream->shown.c_str();
  *text_size = stream->shown.size();
}

tv_sampler_options default_options() {
  const tv::SamplerOptions d;
  tv_sampler_options out{};
  out.struct_size = sizeof(out);
  out.temperature = d.temperature;
  out.top_k = d.top_k;
  out.top_p = d.top_p;
  out.min_p = d.min_p;
  out.repeat_penalty = d.repeat_penalty;
  return out;
}

tv::SamplerOptions sampler_options(const tv_sampler_options& o) {
  if (o.n_bias != 0) {
    require(o.bias_ids, "tv_sampler_open", "bias_ids");
    require(o.bias, "tv_sampler_open", "bias");
  }
  tv::SamplerOptions out{o.temperature,       o.top_k, o.top_p, o.min_p, o.repeat_penalty, o.presence_penalty,
                         o.frequency_penalty, o.seed,  {}};
  for (size_t i = 0; i < o.n_bias; ++i) out.bias.emplace_back(o.bias_ids[i], o.bias[i]);
  return out;
}

std::vector<tv::ChatMessage> messages_of(const tv_chat_message* messages, size_t n, const char* call) {
  if (n != 0) require(messages, call, "messages");
  std::vector<tv::ChatMessage> out;
  for (size_t i = 0; i < n; ++i) {
    require(messages[i].role, call, "a role");
    out.push_back(
        {messages[i].role, text_of(messages[i].content, messages[i].content_size, call, "a content")});
  }
  return out;
}

}  // namespace

tv_status tv_tokenizer_open(const char* path, tv_tokenizer** out) {
  return guard([&] {
    require(path, "tv_tokenizer_open", "path");
    require(out, "tv_tokenizer_open", "out");
    auto file = std::make_shared<const tv::GGUF>(tv::Mapping(path));
    *out = new tv_tokenizer{std::make_shared<const tv::Tokenizer>(std::move(file))};
  });
}

tv_status tv_tokenizer_from_model(const tv_model* model, tv_tokenizer** out) {
  return guard([&] {
    require(model, "tv_tokenizer_from_model", "model");
    require(out, "tv_tokenizer_from_model", "out");
    std::shared_ptr<const tv::GGUF> file = model->model->shared_file();
    if (file == nullptr)
      tv::fail(Status::tokenizer, "[tv_tokenizer_from_model] the model was not opened from a file");
    *out = new tv_tokenizer{std::make_shared<const tv::Tokenizer>(std::move(file))};
  });
}

tv_status tv_tokenizer_free(tv_tokenizer* tokenizer) {
  delete tokenizer;
  return TV_OK;
}

tv_status tv_tokenizer_get_info(const tv_tokenizer* tokenizer, tv_tokenizer_info* out) {
  return guard([&] {
    require(tokenizer, "tv_tokenizer_get_info", "tokenizer");
    const tv::Vocab& v = tokenizer->tokenizer->vocab();
    fill(out,
         {sizeof(tv_tokenizer_info), model_name(v.model), v.pre.c_str(), v.size(), v.bos, v.eos, v.unk, v.pad,
          v.add_bos, v.add_eos, v.space_prefix != tv::SpacePrefix::none},
         "tv_tokenizer_get_info");
  });
}

tv_status tv_tokenizer_get_token(const tv_tokenizer* tokenizer, int32_t id, tv_token_info* out) {
  return guard([&] {
    require(tokenizer, "tv_tokenizer_get_token", "tokenizer");
    const tv::Vocab& v = tokenizer->tokenizer->vocab();
    v.check(id);
    const std::string_view text = v.text(id);
    fill(out,
         {sizeof(tv_token_info), text.data(), text.size(), static_cast<int32_t>(v.kind(id)), v.is_end(id),
          v.score(id)},
         "tv_tokenizer_get_token");
  });
}

tv_status tv_tokenizer_find(const tv_tokenizer* tokenizer, const char* text, size_t text_size, int32_t* id) {
  return guard([&] {
    require(tokenizer, "tv_tokenizer_find", "tokenizer");
    require(id, "tv_tokenizer_find", "id");
    *id = tokenizer->tokenizer->vocab().find(text_of(text, text_size, "tv_tokenizer_find", "text"));
  });
}

tv_status tv_tokenizer_get_ends(const tv_tokenizer* tokenizer, int32_t* ids, size_t capacity,
                                size_t* needed) {
  return guard([&] {
    require(tokenizer, "tv_tokenizer_get_ends", "tokenizer");
    const std::vector<int32_t>& ends = tokenizer->tokenizer->vocab().ends();
    give(ends.data(), ends.size(), ids, capacity, needed, "tv_tokenizer_get_ends");
  });
}

tv_status tv_tokenizer_encode(const tv_tokenizer* tokenizer, const char* text, size_t text_size,
                              uint32_t flags, int32_t* ids, size_t capacity, size_t* needed) {
  return tv_tokenizer_encode_literal(tokenizer, text, text_size, flags, nullptr, 0, ids, capacity, needed);
}

tv_status tv_tokenizer_encode_literal(const tv_tokenizer* tokenizer, const char* text, size_t text_size,
                                      uint32_t flags, const tv_span* literal, size_t n_literal, int32_t* ids,
                                      size_t capacity, size_t* needed) {
  return guard([&] {
    constexpr const char* kCall = "tv_tokenizer_encode";
    require(tokenizer, kCall, "tokenizer");
    check_flags(flags, TV_ADD_SPECIAL | TV_PARSE_SPECIAL, kCall);
    const std::vector<tv::ByteSpan> spans = spans_of(literal, n_literal, text_size, kCall);
    const std::vector<int32_t> found = tokenizer->tokenizer->encode(
        text_of(text, text_size, kCall, "text"), {.add_special = (flags & TV_ADD_SPECIAL) != 0,
                                                  .parse_special = (flags & TV_PARSE_SPECIAL) != 0,
                                                  .literal = spans});
    give(found.data(), found.size(), ids, capacity, needed, kCall);
  });
}

tv_status tv_tokenizer_decode(const tv_tokenizer* tokenizer, const int32_t* ids, size_t n_ids, uint32_t flags,
                              char* out, size_t capacity, size_t* needed) {
  return guard([&] {
    constexpr const char* kCall = "tv_tokenizer_decode";
    require(tokenizer, kCall, "tokenizer");
    const std::string text =
        tokenizer->tokenizer->decode(ids_of(ids, n_ids, kCall), decode_options(flags, kCall));
    give(text.data(), text.size(), out, capacity, needed, kCall);
  });
}

tv_status tv_tokenizer_token_bytes(const tv_tokenizer* tokenizer, int32_t id, char* out, size_t capacity,
                                   size_t* needed) {
  return guard([&] {
    require(tokenizer, "tv_tokenizer_token_bytes", "tokenizer");
    const std::string_view bytes = tokenizer->tokenizer->token_bytes(id);
    give(bytes.data(), bytes.size(), out, capacity, needed, "tv_tokenizer_token_bytes");
  });
}

tv_status tv_tokenizer_stream_open(const tv_tokenizer* tokenizer, uint32_t flags, tv_tokenizer_stream** out) {
  return guard([&] {
    require(tokenizer, "tv_tokenizer_stream_open", "tokenizer");
    require(out, "tv_tokenizer_stream_open", "out");
    const tv::Tokenizer::DecodeOptions options = decode_options(flags, "tv_tokenizer_stream_open");
    *out = new tv_tokenizer_stream{tv::TokenStream(tokenizer->tokenizer, options), {}};
  });
}

tv_status tv_tokenizer_stream_push(tv_tokenizer_stream* stream, int32_t id, const char** text,
                                   size_t* text_size) {
  return guard([&] {
    require(stream, "tv_tokenizer_stream_push", "stream");
    require(text, "tv_tokenizer_stream_push", "text");
    require(text_size, "tv_tokenizer_stream_push", "text_size");
    std::string fresh;
    stream->stream.push(id, fresh);
    stream->shown = std::move(fresh);
    show(stream, text, text_size);
  });
}

tv_status tv_tokenizer_stream_flush(tv_tokenizer_stream* stream, const char** text, size_t* text_size) {
  return guard([&] {
    require(stream, "tv_tokenizer_stream_flush", "stream");
    require(text, "tv_tokenizer_stream_flush", "text");
    require(text_size, "tv_tokenizer_stream_flush", "text_size");
    stream->shown.clear();
    stream->stream.flush(stream->shown);
    show(stream, text, text_size);
  });
}

tv_status tv_tokenizer_stream_free(tv_tokenizer_stream* stream) {
  delete stream;
  return TV_OK;
}

tv_status tv_sampler_options_init(tv_sampler_options* options) {
  return guard([&] {
    require(options, "tv_sampler_options_init", "options");
    *options = default_options();
  });
}

tv_status tv_sampler_open(const tv_sampler_options* options, tv_sampler** out) {
  return guard([&] {
    require(out, "tv_sampler_open", "out");
    const tv_sampler_options known = read_options(options, default_options(), "tv_sampler_open");
    *out = new tv_sampler{tv::Sampler(sampler_options(known))};
  });
}

tv_status tv_sampler_accept(tv_sampler* sampler, const int32_t* ids, size_t n_ids, int32_t generated) {
  return guard([&] {
    require(sampler, "tv_sampler_accept", "sampler");
    sampler->sampler.accept(ids_of(ids, n_ids, "tv_sampler_accept"), generated != 0);
  });
}

tv_status tv_sampler_sample(tv_sampler* sampler, const float* logits, size_t n_vocab, int32_t* id) {
  return guard([&] {
    require(sampler, "tv_sampler_sample", "sampler");
    require(logits, "tv_sampler_sample", "logits");
    require(id, "tv_sampler_sample", "id");
    *id = sampler->sampler.sample({logits, n_vocab});
  });
}

tv_status tv_sampler_reset(tv_sampler* sampler) {
  return guard([&] {
    require(sampler, "tv_sampler_reset", "sampler");
    sampler->sampler.reset();
  });
}

tv_status tv_sampler_free(tv_sampler* sampler) {
  delete sampler;
  return TV_OK;
}

tv_status tv_chat_open(const tv_tokenizer* tokenizer, tv_chat** out) {
  return guard([&] {
    require(tokenizer, "tv_chat_open", "tokenizer");
    require(out, "tv_chat_open", "out");
    *out = new tv_chat{tv::ChatFormat(tokenizer->tokenizer)};
  });
}

tv_status tv_chat_format(const tv_chat* chat, const tv_chat_message* messages, size_t n_messages,
                         uint32_t flags, char* out, size_t capacity, size_t* needed) {
  return guard([&] {
    constexpr const char* kCall = "tv_chat_format";
    require(chat, kCall, "chat");
    check_flags(flags, TV_ADD_GENERATION, kCall);
    const tv::ChatFormat::Text text =
        chat->format.format(messages_of(messages, n_messages, kCall), (flags & TV_ADD_GENERATION) != 0);
    give(text.text.data(), text.text.size(), out, capacity, needed, kCall);
  });
}

tv_status tv_chat_encode(const tv_chat* chat, const tv_chat_message* messages, size_t n_messages,
                         uint32_t flags, int32_t* ids, size_t capacity, size_t* needed) {
  return guard([&] {
    constexpr const char* kCall = "tv_chat_encode";
    require(chat, kCall, "chat");
    check_flags(flags, TV_ADD_GENERATION, kCall);
    const std::vector<int32_t> found =
        chat->format.encode(messages_of(messages, n_messages, kCall), (flags & TV_ADD_GENERATION) != 0);
    give(found.data(), found.size(), ids, capacity, needed, kCall);
  });
}

tv_status tv_chat_free(tv_chat* chat) {
  delete chat;
  return TV_OK;
}
