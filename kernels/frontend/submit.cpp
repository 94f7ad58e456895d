// A submit: everything in a slot is checked against the step before it is queued, and what only the device region knows (the rows marked
// -1) once more when its turn comes. Ops read the checked copy, so no slot content can make them leave their memory.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "backend.h"

namespace bao {
namespace {

constexpr int32_t sequence_delta_words = 68, page_delta_words = 4;

// Tables that an op uses, with how far it reaches.
struct Reach {
  int32_t window, committed, pages;
  const int32_t* table;  // [sequence][pages]
};

// The first page index on the way from position `low` (what its window reaches) to `high` that is unset, unbacked or outside the table,
// -1 when there is none.
int32_t missing_page(const Reach& reach, int32_t sequence, int32_t low, int32_t high) {
  int32_t first = reach.window == 0 ? 0 : std::max(0, low - (reach.window - 1)) / BAO_KV_PAGE_TOKENS, last = high / BAO_KV_PAGE_TOKENS;
  if (last >= reach.pages) return last;
  const int32_t* row = reach.table + int64_t(sequence) * reach.pages;
  for (int32_t i = first; i <= last; i++) {
    if (row[i] < 0 || row[i] >= reach.committed) return i;
  }
  return -1;
}

// Checks the copy of one slot. Page deltas go to the shadow at once and are taken back when a later check fails.
class Checker {
 public:
  Checker(Stream& stream, const Graph* graph, int32_t slot, const int32_t committed[4], const char* function)
      : stream_(stream), graph_(graph), step_(*stream.step), slot_(slot), committed_(committed), function_(function) {}

  int32_t run(bool* continues) {
    bool holds = header() && (continues_ || (page_deltas() && sequence_deltas())) && rows() && outputs();
    if (holds && stream_.limits.samplers) holds = samplers();
    if (holds && stream_.limits.draws) holds = draws();
    if (!holds) {
      for (size_t i = undo_.size(); i-- > 0;) step_.table_shadow[undo_[i].first] = undo_[i].second;
      for (size_t i = bound_undo_.size(); i-- > 0;) step_.length_bound[bound_undo_[i].first] = bound_undo_[i].second;
      // Whatever the copy holds now, it is no accepted step.
      if (overwritten_) step_.serial[slot_] = 0;
      return BAO_INVALID | 2 << 8;
    }
    if (stream_.limits.draws) advance_bounds();
    step_.serial[slot_] = serial_;
    step_.samplers_taken[slot_] = stream_.limits.samplers || (continues_ && step_.samplers_taken[slot_]);
    *continues = continues_;
    return BAO_OK;
  }

 private:
  bool no(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail(BAO_INVALID, 2, function_, "slot %d: %s", slot_, text);
    return false;
  }

  // Copies the first `count` words of a field; from then on only the copy is looked at.
  const int32_t* take(int32_t field, int64_t count) {
    char* to = step_.accepted_field(slot_, field);
    std::memcpy(to, step_.host_field(slot_, field), static_cast<size_t>(count) * 4);
    return reinterpret_cast<const int32_t*>(to);
  }

  const int32_t* accepted(int32_t field) const { return reinterpret_cast<const int32_t*>(step_.accepted_field(slot_, field)); }

  bool header() {
    std::memcpy(&serial_, reinterpret_cast<const int32_t*>(step_.host_field(slot_, BAO_FIELD_HEADER)) + BAO_HEADER_SERIAL, sizeof serial_);
    if (serial_ == 0) return no("the serial is 0, expected the number of this filling");
    continues_ = serial_ == step_.serial[slot_];
    if (!continues_ && step_.busy[slot_].load(std::memory_order_acquire)) return no("serial %d, but submits of serial %d have not ended", serial_, step_.serial[slot_]);
    overwritten_ = !continues_;
    const int32_t* words = continues_ ? accepted(BAO_FIELD_HEADER) : take(BAO_FIELD_HEADER, BAO_HEADER_WORDS);
    rows_ = words[BAO_HEADER_ROWS];
    outputs_ = words[BAO_HEADER_OUTPUTS];
    page_deltas_ = words[BAO_HEADER_PAGE_DELTAS];
    sequence_deltas_ = words[BAO_HEADER_SEQUENCE_DELTAS];
    const Limits& limits = stream_.limits;
    if (rows_ < 0 || rows_ > step_.max_rows) return no("%d rows, expected 0 to %d", rows_, step_.max_rows);
    if (rows_ > limits.rows) return no("%d rows, the recording's smallest view of step rows holds %d", rows_, limits.rows);
    if (outputs_ < 0 || outputs_ > std::min(step_.max_outputs, rows_)) return no("%d outputs, expected 0 to %d", outputs_, std::min(step_.max_outputs, rows_));
    if (outputs_ > limits.outputs) return no("%d outputs, the recording's smallest view of output rows holds %d", outputs_, limits.outputs);
    if (graph_ && (rows_ > graph_->rows || outputs_ > graph_->outputs)) return no("%d rows and %d outputs, the graph was made for %d and %d", rows_, outputs_, graph_->rows, graph_->outputs);
    if (page_deltas_ < 0 || page_deltas_ > step_.max_deltas) return no("%d page deltas, expected 0 to %d", page_deltas_, step_.max_deltas);
    if (sequence_deltas_ < 0 || sequence_deltas_ > step_.max_sequences) return no("%d sequence deltas, expected 0 to %d", sequence_deltas_, step_.max_sequences);
    return true;
  }

  bool sequence_ok(int32_t sequence) const { return sequence >= 0 && sequence < step_.max_sequences; }
  bool id_ok(int32_t id) const { return id >= 0 && id < step_.vocabulary; }

  bool page_deltas() {
    const int32_t* delta = take(BAO_FIELD_PAGE_DELTA, int64_t(page_deltas_) * page_delta_words);
    undo_.reserve(static_cast<size_t>(page_deltas_));
    for (int32_t i = 0; i < page_deltas_; i++, delta += page_delta_words) {
      int32_t table = delta[0], sequence = delta[1], index = delta[2], page = delta[3];
      if (table < 0 || table > 3 || step_.pages[table] == 0) return no("page delta %d names table %d, which this step does not have", i, table);
      if (!sequence_ok(sequence)) return no("page delta %d names sequence %d, expected 0 to %d", i, sequence, step_.max_sequences - 1);
      if (index < 0 || index >= step_.pages[table]) return no("page delta %d names index %d, expected 0 to %d", i, index, step_.pages[table] - 1);
      if (page < -1) return no("page delta %d names page %d, expected -1 or a page", i, page);
      size_t at = static_cast<size_t>(step_.table_start[table] + int64_t(sequence) * step_.pages[table] + index);
      undo_.emplace_back(at, step_.table_shadow[at]);
      step_.table_shadow[at] = page;
    }
    std::vector<size_t> places;
    for (const auto& entry : undo_) places.push_back(entry.first);
    std::sort(places.begin(), places.end());
    if (std::adjacent_find(places.begin(), places.end()) != places.end()) return no("two page deltas name the same table, sequence and index");
    return true;
  }

  bool sequence_deltas() {
    const int32_t* delta = take(BAO_FIELD_SEQUENCE_DELTA, int64_t(sequence_deltas_) * sequence_delta_words);
    bound_undo_.reserve(static_cast<size_t>(sequence_deltas_));
    step_.stamp++;
    for (int32_t i = 0; i < sequence_deltas_; i++, delta += sequence_delta_words) {
      int32_t sequence = delta[0], length = delta[1], next = delta[2], n = delta[3];
      if (!sequence_ok(sequence)) return no("sequence delta %d names sequence %d, expected 0 to %d", i, sequence, step_.max_sequences - 1);
      if (step_.seen[static_cast<size_t>(sequence)] == step_.stamp) return no("two sequence deltas name sequence %d", sequence);
      step_.seen[static_cast<size_t>(sequence)] = step_.stamp;
      if (length < 0) return no("sequence delta %d: length %d is negative", i, length);
      if (next != -1 && !id_ok(next)) return no("sequence delta %d: next id %d, expected -1 (none) to %d", i, next, step_.vocabulary - 1);
      if (n < 0 || n > 64) return no("sequence delta %d: %d recent ids, expected 0 to 64", i, n);
      for (int32_t j = 0; j < n; j++) {
        if (!id_ok(delta[4 + j])) return no("sequence delta %d: recent id %d is %d, expected 0 to %d", i, j, delta[4 + j], step_.vocabulary - 1);
      }
      int64_t& bound = step_.length_bound[static_cast<size_t>(sequence)];
      bound_undo_.emplace_back(static_cast<size_t>(sequence), bound);
      bound = length;
    }
    return true;
  }

  const int32_t* rows_field(int32_t field) { return continues_ ? accepted(field) : take(field, rows_); }

  bool rows() {
    const int32_t* sequence = rows_field(BAO_FIELD_ROW_SEQUENCE);
    const int32_t* id = rows_field(BAO_FIELD_ROW_ID);
    const int32_t* position = rows_field(BAO_FIELD_ROW_POSITION);
    step_.stamp++;
    for (int32_t first = 0; first < rows_;) {
      int32_t s = sequence[first], last = first;
      if (!sequence_ok(s)) return no("row %d: sequence %d, expected 0 to %d", first, s, step_.max_sequences - 1);
      if (step_.seen[static_cast<size_t>(s)] == step_.stamp) return no("row %d: the rows of sequence %d are not adjacent", first, s);
      step_.seen[static_cast<size_t>(s)] = step_.stamp;
      for (; last < rows_ && sequence[last] == s; last++) {
        if (id[last] != -1 && !id_ok(id[last])) return no("row %d: id %d, expected -1 or 0 to %d", last, id[last], step_.vocabulary - 1);
        if (position[last] < -1) return no("row %d: position %d, expected -1 or a position", last, position[last]);
        if ((id[last] == -1) != (position[last] == -1)) return no("row %d: id %d with position %d, expected both or neither to be -1", last, id[last], position[last]);
        if (last == first) continue;
        if (position[last] == -1 || position[first] == -1) return no("row %d: a row marked -1 is the only row of its sequence", last);
        if (int64_t(position[last]) != int64_t(position[last - 1]) + 1) return no("row %d: position %d does not follow %d", last, position[last], position[last - 1]);
      }
      int64_t low = position[first], high = position[last - 1];
      if (low == -1) low = high = step_.length_bound[static_cast<size_t>(s)];
      if (high >= INT32_MAX) return no("row %d: position %lld is too large", first, static_cast<long long>(high));
      if (!pages_set(first, s, static_cast<int32_t>(low), static_cast<int32_t>(high))) return false;
      first = last;
    }
    return true;
  }

  bool pages_set(int32_t row, int32_t sequence, int32_t low, int32_t high) {
    for (int t = 0; t < 4; t++) {
      if (stream_.limits.window[t] < 0) continue;
      Reach reach{stream_.limits.window[t], committed_[t], step_.pages[t], step_.table_shadow.data() + step_.table_start[t]};
      int32_t index = missing_page(reach, sequence, low, high);
      if (index < 0) continue;
      if (index >= reach.pages) return no("row %d: position %d of sequence %d lies beyond the %d pages of table %d", row, high, sequence, reach.pages, t);
      int32_t page = reach.table[int64_t(sequence) * reach.pages + index];
      if (page < 0) return no("row %d: sequence %d reaches index %d of table %d, which is not set", row, sequence, index, t);
      return no("row %d: sequence %d reaches page %d through table %d, of which %d are backed", row, sequence, page, t, reach.committed);
    }
    return true;
  }

  bool outputs() {
    const int32_t* row = continues_ ? accepted(BAO_FIELD_OUTPUT_ROW) : take(BAO_FIELD_OUTPUT_ROW, outputs_);
    for (int32_t i = 0; i < outputs_; i++) {
      if (row[i] < 0 || row[i] >= rows_) return no("output %d: row %d, expected 0 to %d", i, row[i], rows_ - 1);
      if (i > 0 && row[i] <= row[i - 1]) return no("output %d: row %d does not follow %d", i, row[i], row[i - 1]);
    }
    return true;
  }

  bool samplers() {
    if (continues_ && step_.samplers_taken[slot_]) return true;
    const int32_t* word = take(BAO_FIELD_OUTPUT_SAMPLER, int64_t(outputs_) * BAO_SAMPLER_WORDS);
    int32_t bias_end = 0;
    for (int32_t i = 0; i < outputs_; i++, word += BAO_SAMPLER_WORDS) {
      auto number = [word](int32_t at) {
        float value;
        std::memcpy(&value, word + at, sizeof value);
        return value;
      };
      float temperature = number(BAO_SAMPLER_TEMPERATURE), top_p = number(BAO_SAMPLER_TOP_P), min_p = number(BAO_SAMPLER_MIN_P);
      float repetition = number(BAO_SAMPLER_REPETITION), presence = number(BAO_SAMPLER_PRESENCE), frequency = number(BAO_SAMPLER_FREQUENCY);
      if (!(temperature >= 0 && std::isfinite(temperature))) return no("output %d: temperature %g, expected 0 or more", i, temperature);
      if (word[BAO_SAMPLER_TOP_K] < 0) return no("output %d: top-k %d, expected 0 or more", i, word[BAO_SAMPLER_TOP_K]);
      if (!(top_p > 0 && top_p <= 1)) return no("output %d: top-p %g, expected more than 0, up to 1", i, top_p);
      if (!(min_p >= 0 && min_p <= 1)) return no("output %d: min-p %g, expected 0 to 1", i, min_p);
      if (!(repetition > 0 && std::isfinite(repetition))) return no("output %d: repetition penalty %g, expected more than 0", i, repetition);
      if (!std::isfinite(presence)) return no("output %d: presence penalty %g is not finite", i, presence);
      if (!std::isfinite(frequency)) return no("output %d: frequency penalty %g is not finite", i, frequency);
      int32_t top = word[BAO_SAMPLER_TOP_LOGPROBS], flags = word[BAO_SAMPLER_FLAGS];
      if (top < -1 || top > 20) return no("output %d: %d top log-probabilities, expected -1 to 20", i, top);
      if ((flags & ~(BAO_SAMPLE_MASK | BAO_SAMPLE_HOLD)) != 0) return no("output %d: flags %d, expected a combination of BAO_SAMPLE_*", i, flags);
      int32_t start = word[BAO_SAMPLER_BIAS_START], count = word[BAO_SAMPLER_BIAS_COUNT];
      if (start < 0 || count < 0 || int64_t(start) + count > step_.max_bias) return no("output %d: bias entries %d + %d, expected at most %d", i, start, count, step_.max_bias);
      if (count > 0) bias_end = std::max(bias_end, start + count);
    }
    return bias(bias_end);
  }

  // All entries below the highest one that a record names are copied; those that a record names are checked.
  bool bias(int32_t end) {
    const int32_t* entry = take(BAO_FIELD_BIAS, int64_t(end) * 2);
    const int32_t* word = accepted(BAO_FIELD_OUTPUT_SAMPLER);
    for (int32_t i = 0; i < outputs_; i++, word += BAO_SAMPLER_WORDS) {
      int32_t start = word[BAO_SAMPLER_BIAS_START], stop = start + word[BAO_SAMPLER_BIAS_COUNT];
      for (int32_t j = start; j < stop; j++) {
        float value;
        std::memcpy(&value, entry + 2 * int64_t(j) + 1, sizeof value);
        if (!id_ok(entry[2 * int64_t(j)])) return no("bias entry %d: id %d, expected 0 to %d", j, entry[2 * int64_t(j)], step_.vocabulary - 1);
        if (!(value < INFINITY)) return no("bias entry %d: value %g, expected a finite number or -infinity", j, static_cast<double>(value));
      }
    }
    return true;
  }

  bool advances(int32_t output) const {
    return (accepted(BAO_FIELD_OUTPUT_SAMPLER)[int64_t(output) * BAO_SAMPLER_WORDS + BAO_SAMPLER_FLAGS] & BAO_SAMPLE_HOLD) == 0;
  }

  // Two rows must not advance one sequence; an output that does is its sequence's last row.
  bool draws() {
    const int32_t* row = accepted(BAO_FIELD_OUTPUT_ROW);
    const int32_t* sequence = accepted(BAO_FIELD_ROW_SEQUENCE);
    for (int32_t i = 0; i < outputs_; i++) {
      if (!advances(i) || row[i] + 1 == rows_ || sequence[row[i] + 1] != sequence[row[i]]) continue;
      return no("output %d: row %d advances sequence %d but is not its last row, expected BAO_SAMPLE_HOLD", i, row[i], sequence[row[i]]);
    }
    return true;
  }

  void advance_bounds() {
    const int32_t* row = accepted(BAO_FIELD_OUTPUT_ROW);
    const int32_t* sequence = accepted(BAO_FIELD_ROW_SEQUENCE);
    const int32_t* position = accepted(BAO_FIELD_ROW_POSITION);
    for (int32_t i = 0; i < outputs_; i++) {
      if (!advances(i)) continue;
      int64_t& bound = step_.length_bound[static_cast<size_t>(sequence[row[i]])];
      bound = position[row[i]] == -1 ? bound + 1 : int64_t(position[row[i]]) + 1;
    }
  }

  Stream& stream_;
  const Graph* graph_;
  Step& step_;
  int32_t slot_;
  const int32_t* committed_;
  const char* function_;
  int32_t serial_ = 0, rows_ = 0, outputs_ = 0, page_deltas_ = 0, sequence_deltas_ = 0;
  bool continues_ = false, overwritten_ = false;
  std::vector<std::pair<size_t, int32_t>> undo_;
  std::vector<std::pair<size_t, int64_t>> bound_undo_;
};

}  // namespace

namespace {

void apply_deltas(Step& step, int32_t slot) {
  auto words = [&](int32_t field) { return reinterpret_cast<const int32_t*>(step.accepted_field(slot, field)); };
  const int32_t* header = words(BAO_FIELD_HEADER);
  const int32_t* delta = words(BAO_FIELD_PAGE_DELTA);
  for (int32_t i = 0; i < header[BAO_HEADER_PAGE_DELTAS]; i++, delta += page_delta_words) {
    step.tables[step.table_start[delta[0]] + int64_t(delta[1]) * step.pages[delta[0]] + delta[2]] = delta[3];
  }
  delta = words(BAO_FIELD_SEQUENCE_DELTA);
  for (int32_t i = 0; i < header[BAO_HEADER_SEQUENCE_DELTAS]; i++, delta += sequence_delta_words) {
    StepRef& ref = step.ref;
    int32_t sequence = delta[0];
    ref.length[sequence] = delta[1];
    ref.next_id[sequence] = delta[2];
    ref.history_count[sequence] = delta[3];
    std::copy(delta + 4, delta + 4 + delta[3], ref.history + int64_t(sequence) * 64);
  }
}

}  // namespace

bool submit_begin(Stream& stream, int32_t slot, bool continues, const int32_t committed[4], char* error, size_t error_bytes) {
  Step& step = *stream.step;
  StepRef& ref = step.ref;
  auto words = [&](int32_t field) { return reinterpret_cast<const int32_t*>(step.accepted_field(slot, field)); };
  const int32_t* header = words(BAO_FIELD_HEADER);
  if (!continues) apply_deltas(step, slot);
  ref.rows = header[BAO_HEADER_ROWS];
  ref.outputs = header[BAO_HEADER_OUTPUTS];
  ref.row_sequence = words(BAO_FIELD_ROW_SEQUENCE);
  int32_t* resolved_id = step.resolved_id + int64_t(slot) * step.max_rows;
  int32_t* resolved_position = step.resolved_position + int64_t(slot) * step.max_rows;
  ref.row_id = resolved_id;
  ref.row_position = resolved_position;
  ref.output_row = words(BAO_FIELD_OUTPUT_ROW);
  ref.sampler = words(BAO_FIELD_OUTPUT_SAMPLER);
  ref.bias = words(BAO_FIELD_BIAS);
  ref.result = reinterpret_cast<int32_t*>(step.host_field(slot, BAO_FIELD_RESULT));
  const int32_t* id = words(BAO_FIELD_ROW_ID);
  const int32_t* position = words(BAO_FIELD_ROW_POSITION);
  for (int32_t r = 0; r < ref.rows; r++) {
    int32_t sequence = ref.row_sequence[r];
    if (!continues) {
      resolved_id[r] = id[r] == -1 ? ref.next_id[sequence] : id[r];
      resolved_position[r] = position[r] == -1 ? ref.length[sequence] : position[r];
    }
    if (position[r] != -1) continue;
    if (resolved_id[r] < 0 || resolved_id[r] >= step.vocabulary) {
      std::snprintf(error, error_bytes, "row %d: sequence %d has no next id", r, sequence);
      return false;
    }
    // A cancelled step leaves a sequence shorter than its bound, so its window may begin on an earlier page than the one checked.
    for (int t = 0; t < 4; t++) {
      if (stream.limits.window[t] < 0) continue;
      Reach reach{stream.limits.window[t], committed[t], step.pages[t], ref.table[t]};
      int32_t index = missing_page(reach, sequence, resolved_position[r], resolved_position[r]);
      if (index < 0) continue;
      std::snprintf(error, error_bytes, "row %d: position %d of sequence %d needs index %d of page table %d, which is not set or not backed", r,
                    resolved_position[r], sequence, index, t);
      return false;
    }
  }
  return true;
}

namespace {

// Every object that the recording names is alive, and how many pages its pools back, per table.
int32_t check_uses(Stream& stream, int32_t committed[4], const char* f) {
  int64_t epoch = stream.device->free_epoch.load(std::memory_order_acquire);
  if (stream.checked_epoch != epoch) {
    for (bao_handle h : stream.uses) {
      if (!handle_get(h)) return fail(BAO_INVALID, 1, f, "object %.0f, which the recording names, was freed", h);
    }
    stream.checked_epoch = epoch;
  }
  for (int t = 0; t < 4; t++) committed[t] = INT32_MAX;
  for (bao_handle h : stream.pools) {
    const Pool* pool = handle_as<Pool>(h, Kind::pool);
    if (!pool) return fail(BAO_INVALID, 1, f, "KV pool %.0f, which the recording names, was freed", h);
    committed[pool->table] = std::min(committed[pool->table], pool->committed);
  }
  return BAO_OK;
}

int32_t submit(Stream* stream, Graph* graph, int32_t slot, const char* f) {
  if (!stream->complete) return fail(BAO_INVALID, 1, f, "the stream has no finished recording (bao_stream_end)");
  int32_t committed[4];
  if (int32_t status = check_uses(*stream, committed, f)) return status;
  Step* step = stream->step;
  if (slot < 0 || slot >= step->slots) return fail(BAO_INVALID, 2, f, "slot %d, expected 0 to %d", slot, step->slots - 1);
  if (stream->slot_state[slot].owed) return fail(BAO_INVALID, 2, f, "the last submit of slot %d through this stream has not been waited for", slot);
  Backend& backend = *stream->device->backend;
  if (backend.full()) return fail(BAO_OUT_OF_MEMORY, 0, f, "too many submits are queued: wait for one");
  bool continues = false;
  if (int32_t status = Checker(*stream, graph, slot, committed, f).run(&continues)) return status;
  return backend.submit(*stream, graph, slot, continues, committed, f);
}

// The graph's stream, null after a failure: its recording must be the one that was instantiated.
Stream* stream_of(const Graph& graph, const char* f) {
  Stream* stream = handle_as<Stream>(graph.stream, Kind::stream);
  if (stream && stream->recording == graph.recording && handle_get(stream->uses.front())) return stream;
  fail(BAO_INVALID, 1, f, "the graph's recording has ended: its stream was freed or recorded anew");
  return nullptr;
}

bao_handle create_graph(bao_handle handle, int32_t rows, int32_t outputs) {
  const char* f = "bao_graph_create";
  Stream* stream = need<Stream>(handle, Kind::stream, 1, f);
  if (!stream) return 0;
  if ((backend_caps() & BAO_CAP_GRAPH) == 0) return fail(BAO_UNSUPPORTED, 0, f, "this backend has no graphs (BAO_CAP_GRAPH): submit the stream"), 0;
  if (!stream->complete) return fail(BAO_INVALID, 1, f, "the stream has no finished recording (bao_stream_end)"), 0;
  int32_t committed[4];
  if (check_uses(*stream, committed, f) != BAO_OK) return 0;
  int32_t most_rows = std::min(stream->step->max_rows, stream->limits.rows), most_outputs = std::min(stream->step->max_outputs, stream->limits.outputs);
  if (rows < 1 || rows > most_rows) return fail(BAO_INVALID, 2, f, "rows is %d, expected 1 to %d", rows, most_rows), 0;
  if (outputs < 0 || outputs > most_outputs) return fail(BAO_INVALID, 3, f, "outputs is %d, expected 0 to %d", outputs, most_outputs), 0;
  auto graph = std::make_unique<Graph>();
  graph->kind = Kind::graph;
  graph->device = stream->device;
  graph->stream = handle;
  graph->recording = stream->recording;
  graph->rows = rows;
  graph->outputs = outputs;
  if (stream->device->backend->graph_made(*graph, *stream, f) != BAO_OK) return 0;
  return handle_new(std::move(graph));
}

// A slot of the stream, null after a failure with the status to return.
Stream::SlotState* slot_of(bao_handle handle, int32_t slot, const char* f, Stream** stream, int32_t* status) {
  *stream = need<Stream>(handle, Kind::stream, 1, f);
  *status = invalid_argument(1);
  if (!*stream) return nullptr;
  if (slot >= 0 && slot < (*stream)->slots) return &(*stream)->slot_state[slot];
  *status = fail(BAO_INVALID, 2, f, "slot %d, expected 0 to %d", slot, (*stream)->slots - 1);
  return nullptr;
}

// The slot's status, its text moved to this thread's last error when it is a failure.
int32_t outcome(const Stream::SlotState& state, const char* f) {
  int32_t status = state.status.load(std::memory_order_acquire);
  if (status != BAO_OK && status != BAO_PENDING) fail(status, 0, f, "%s", state.error.c_str());
  return status;
}

}  // namespace
}  // namespace bao

using namespace bao;

extern "C" {

int32_t bao_submit(bao_handle stream, int32_t slot) {
  return guarded("bao_submit", [&]() -> int32_t {
    Stream* found = need<Stream>(stream, Kind::stream, 1, "bao_submit");
    return found ? submit(found, nullptr, slot, "bao_submit") : invalid_argument(1);
  });
}

int32_t bao_wait(bao_handle handle, int32_t slot, double timeout_ms) {
  return guarded("bao_wait", [&]() -> int32_t {
    Stream* stream;
    int32_t status;
    Stream::SlotState* state = slot_of(handle, slot, "bao_wait", &stream, &status);
    if (!state) return status;
    if (std::isnan(timeout_ms)) return fail(BAO_INVALID, 3, "bao_wait", "the timeout is not a number");
    stream->device->backend->wait(*stream, slot, std::clamp(timeout_ms, 0.0, 1e9));
    status = outcome(*state, "bao_wait");
    if (status != BAO_PENDING) state->owed = false;
    return status;
  });
}

int32_t bao_poll(bao_handle handle, int32_t slot) {
  return guarded("bao_poll", [&]() -> int32_t {
    Stream* stream;
    int32_t status;
    Stream::SlotState* state = slot_of(handle, slot, "bao_poll", &stream, &status);
    if (!state) return status;
    if (state->status.load(std::memory_order_acquire) == BAO_PENDING) stream->device->backend->poll(*stream, slot);
    status = outcome(*state, "bao_poll");
    if (status != BAO_PENDING) state->owed = false;
    return status;
  });
}

int32_t bao_stream_error(bao_handle handle, int32_t slot) {
  return guarded("bao_stream_error", [&]() -> int32_t {
    Stream* stream;
    int32_t status;
    Stream::SlotState* state = slot_of(handle, slot, "bao_stream_error", &stream, &status);
    return state ? outcome(*state, "bao_stream_error") : status;
  });
}

bao_handle bao_graph_create(bao_handle stream, int32_t rows, int32_t outputs) {
  return guarded("bao_graph_create", [&]() -> bao_handle { return create_graph(stream, rows, outputs); });
}

int32_t bao_graph_free(bao_handle handle) {
  return guarded("bao_graph_free", [&]() -> int32_t {
    if ((backend_caps() & BAO_CAP_GRAPH) == 0) return fail(BAO_UNSUPPORTED, 0, "bao_graph_free", "this backend has no graphs (BAO_CAP_GRAPH)");
    Graph* graph = need<Graph>(handle, Kind::graph, 1, "bao_graph_free");
    if (!graph) return invalid_argument(1);
    graph->device->finish();
    handle_free(handle);
    return BAO_OK;
  });
}

int32_t bao_graph_submit(bao_handle handle, int32_t slot) {
  const char* f = "bao_graph_submit";
  return guarded(f, [&]() -> int32_t {
    if ((backend_caps() & BAO_CAP_GRAPH) == 0) return fail(BAO_UNSUPPORTED, 0, f, "this backend has no graphs (BAO_CAP_GRAPH)");
    Graph* graph = need<Graph>(handle, Kind::graph, 1, f);
    Stream* stream = graph ? stream_of(*graph, f) : nullptr;
    return stream ? submit(stream, graph, slot, f) : invalid_argument(1);
  });
}

}  // extern "C"
