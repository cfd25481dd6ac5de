#include "runtime_log.hpp"

#include "log_words.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace sluice::cli {
namespace {

/// Takes "0x" and hexadecimal digits; threads are sometimes without "0x".
bool take_address(std::string_view& text, std::uint64_t& value,
                  bool prefix_needed = true) noexcept {
  std::string_view rest = text;
  if (!take(rest, "0x") && prefix_needed) return false;
  if (!take_number(rest, value, 16)) return false;
  text = rest;
  return true;
}

/// Texts began with a small letter until ROCm 5.
bool take_either(std::string_view& text, std::string_view large, std::string_view small) noexcept {
  return take(text, large) || take(text, small);
}

std::optional<std::uint64_t> field(std::string_view text, std::string_view name) noexcept {
  const auto at = text.rfind(name);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + name.size());
  std::uint64_t value = 0;
  if (!take_number(text, value)) return {};
  return value;
}

}  // namespace

void few_values::add(std::uint64_t value) {
  if (!seen_.empty() && seen_.back() == value) return;
  const auto at = std::find(seen_.begin(), seen_.end(), value);
  if (at != seen_.end()) {
    std::swap(*at, seen_.back());
  } else if (seen_.size() < most) {
    seen_.push_back(value);
  } else {
    more_ = true;
  }
}

std::uint64_t traced_task::created() const noexcept {
  for (const std::string_view each : creating_functions) {
    const auto* const at = std::find(driver_functions.begin(), driver_functions.end(), each);
    const auto count = calls[static_cast<std::size_t>(at - driver_functions.begin())];
    if (count != 0) return count;
  }
  return 0;
}

void runtime_log_parser::keep(std::string_view piece) {
  within_line_ = true;
  if (kept_.size() < longest) kept_.append(piece.substr(0, longest - kept_.size()));
}

void runtime_log_parser::feed(std::string_view piece) {
  while (!piece.empty()) {
    const auto end = piece.find('\n');
    if (end == std::string_view::npos) {
      keep(piece);
      return;
    }
    if (within_line_) {
      keep(piece.substr(0, end));
      end_line(kept_);
      kept_.clear();
      within_line_ = false;
    } else {
      end_line(piece.substr(0, std::min(end, longest)));
    }
    piece.remove_prefix(end + 1);
  }
}

log_usage runtime_log_parser::finish() {
  if (within_line_) end_line(kept_);
  kept_.clear();
  within_line_ = false;
  trace_head_ = false;
  by_address_.clear();
  stream_of_thread_.clear();
  return std::exchange(out_, {});
}

void runtime_log_parser::end_line(std::string_view text) {
  if (text.ends_with('\r')) text.remove_suffix(1);
  ++out_.lines;
  const line_kind kind = read(text);
  ++out_.of_kind[static_cast<std::size_t>(kind)];
  if (kind != line_kind::unknown || out_.first_unknown != 0) return;
  constexpr std::size_t excerpt = 60;
  out_.first_unknown = out_.lines;
  out_.first_unknown_text = text.substr(0, excerpt);
}

line_kind runtime_log_parser::read(std::string_view text) {
  if (text.starts_with("# tracer: ")) trace_head_ = true;
  if (!text.starts_with("#")) trace_head_ = false;
  if (trace_head_) return line_kind::other_trace;
  log_line from;
  if (find_head(text, from)) return read_text(from);
  return traced(read_trace_line(text));
}

/// What a program, or who collects the output of several, wrote without a line's end may stand
/// before a line of the log.
bool runtime_log_parser::find_head(std::string_view line, log_line& found) noexcept {
  for (auto at = line.find(':'); at != std::string_view::npos; at = line.find(':', at + 1))
    if (read_head(line.substr(at), at == 0, found)) return true;
  return false;
}

/// ":LEVEL:FILE:LINE: TIME us: ", and then "[pid:P tid:0xT] ", older "P: [tid:0xT] ", or nothing;
/// ROCr's own lines have no level, which only a line's begin makes sure of. Some builds print the
/// time as "123d us".
bool runtime_log_parser::read_head(std::string_view text, bool at_begin, log_line& found) noexcept {
  text.remove_prefix(1);
  std::uint64_t number = 0;
  std::string_view rest = text;
  if (take_number(rest, number) && take(rest, ":"))
    text = rest;
  else if (!at_begin)
    return false;
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || text.substr(0, colon).find('.') == std::string_view::npos)
    return false;
  rest = text.substr(colon + 1);
  if (!take_number(rest, number)) return false;
  rest = unindented(rest);
  if (!take(rest, ":")) return false;
  rest = unindented(rest);
  if (!take_number(rest, number)) return false;
  (void)take(rest, "d");
  if (!take(rest, " us:")) return false;
  rest = unindented(rest);
  found = {};
  found.text = rest;
  unsigned pid = 0;
  std::uint64_t thread = 0;
  const bool in_brackets = take(rest, "[pid:");
  if (in_brackets) rest = unindented(rest);
  if (take_number(rest, pid) && pid <= unsigned{std::numeric_limits<pid_t>::max()}) {
    bool known = false;
    if (in_brackets) {
      rest = unindented(rest);
      known = take(rest, "tid:");
    } else {
      known = take(rest, ": [tid:");
    }
    rest = unindented(rest);
    if (known && take_address(rest, thread, false) && take(rest, "]")) {
      found.pid = static_cast<pid_t>(pid);
      found.thread = thread;
      found.text = unindented(rest);
    }
  }
  found.of_runtime = take(found.text, "[***rocr***] ");
  found.text = unindented(found.text);
  return true;
}

line_kind runtime_log_parser::read_text(const log_line& from) {
  std::string_view text = from.text;
  if (text.starts_with("SWq=") || text.starts_with("HWq=")) return packet(from);
  if (take_either(text, "Created SWq=", "created SWq=") ||
      take_either(text, "Created hardware queue ", "created hardware queue "))
    return created(from, text);
  if (take_either(text, "AcquireQueue refCount:", "acquireQueue refCount:") ||
      take_either(text, "Selected queue refCount:", "selected queue refCount:"))
    return counted(from, text, line_kind::acquired);
  if (take_either(text, "ReleaseQueue refCount:", "releaseQueue refCount:"))
    return counted(from, text, line_kind::released);
  if (take_either(text, "Deleting hardware queue ", "deleting hardware queue ")) {
    std::uint64_t address = 0;
    if (!take_address(text, address)) return line_kind::unknown;
    if (auto* const queue = queue_at(from.pid, address)) ++queue->deleted;
    return line_kind::deleted;
  }
  if (take_either(text, "Number of allocated hardware queues",
                  "number of allocated hardware queues")) {
    if (const auto limit = field(text, "maximum per priority is: "))
      out_.limit_per_priority = limit;
    return line_kind::other_log;
  }
  if (take(text, "Command (")) {
    const auto at = text.find(") enqueued: ");
    const auto to = text.find(" to queue: ", at == std::string_view::npos ? text.size() : at);
    std::uint64_t stream = 0;
    if (to == std::string_view::npos) return line_kind::other_log;
    text.remove_prefix(to + std::string_view{" to queue: "}.size());
    if (!take_address(text, stream)) return line_kind::other_log;
    const of_process thread{from.thread, from.pid};
    if (const auto found = stream_of_thread_.find(thread); found != stream_of_thread_.end())
      found->second = stream;
    else if (stream_of_thread_.size() < most_threads)
      stream_of_thread_.emplace(thread, stream);
  }
  return line_kind::other_log;
}

/// "SWq=0xS, HWq=0xH, id=N, [virtual_pipe_id=N,] KIND Header = 0x... rptr=R, wptr=W", where SWq, id
/// and the indices came with time.
line_kind runtime_log_parser::packet(const log_line& from) {
  std::string_view text = from.text;
  std::uint64_t object = 0, address = 0;
  if (take(text, "SWq=") && (!take_address(text, object) || !take(text, ", ")))
    return line_kind::unknown;
  if (!take(text, "HWq=") || !take_address(text, address) || !take(text, ", "))
    return line_kind::unknown;
  const auto header = text.find(" Header = 0x");
  if (header == std::string_view::npos) return line_kind::unknown;
  std::string_view kind = text.substr(0, header);
  if (const auto blank = kind.rfind(' '); blank != std::string_view::npos)
    kind.remove_prefix(blank + 1);
  const bool dispatch = kind == "Dispatch";
  if (!dispatch && !kind.starts_with("Barrier")) return line_kind::unknown;
  const line_kind is = dispatch ? line_kind::dispatch : line_kind::barrier;
  hardware_queue* queue = nullptr;
  // Without SWq it names the hsa_queue_t, so nothing new is made of it.
  if (object == 0 && kind == "BarrierValue") {
    queue = known(from.pid, address);
    if (queue == nullptr) ++out_.left_out;
  } else {
    queue = queue_at(from.pid, address);
  }
  if (queue == nullptr) return is;
  if (object != 0) queue->object = object;
  if (from.of_runtime) queue->of_runtime = true;
  if (from.thread != 0) {
    queue->threads.add(from.thread);
    const auto stream = stream_of_thread_.find({from.thread, from.pid});
    if (!from.of_runtime && stream != stream_of_thread_.end()) queue->streams.add(stream->second);
  }
  if (!dispatch) {
    ++queue->barriers;
    return is;
  }
  ++queue->dispatches;
  const auto read = field(text, "rptr="), write = field(text, "wptr=");
  if (!read || !write) return is;
  // No queue is larger than 2^32 packets.
  const std::uint64_t before =
      std::min<std::uint64_t>(*write > *read ? *write - *read : 0, UINT32_MAX);
  if (before != 0) ++queue->behind_others;
  queue->packets_before += before;
  queue->backlog.record(duration{static_cast<duration::rep>(before)});
  return is;
}

/// "0xS to map on HWq=0xH with size N with priority P, cooperative: C", older "0xH with size ...".
line_kind runtime_log_parser::created(const log_line& from, std::string_view rest) {
  std::uint64_t first = 0, address = 0, object = 0;
  if (!take_address(rest, first)) return line_kind::unknown;
  address = first;
  if (take(rest, " to map on HWq=")) {
    object = first;
    if (!take_address(rest, address)) return line_kind::unknown;
  }
  auto* const queue = queue_at(from.pid, address);
  if (queue == nullptr) return line_kind::created;
  ++queue->created;
  if (object != 0) queue->object = object;
  if (const auto size = field(rest, "with size ")) queue->ring_packets = size;
  if (const auto priority = field(rest, "with priority "); priority && *priority <= 2)
    queue->priority = static_cast<unsigned>(*priority);
  if (const auto cooperative = field(rest, "cooperative: ")) queue->cooperative = *cooperative != 0;
  return line_kind::created;
}

/// "0xH (N)": the reference count afterwards, with or without a blank before it.
line_kind runtime_log_parser::counted(const log_line& from, std::string_view rest, line_kind kind) {
  rest = unindented(rest);
  std::uint64_t address = 0, users = 0;
  if (!take_address(rest, address) || !take(rest, " (") || !take_number(rest, users) ||
      !take(rest, ")"))
    return line_kind::unknown;
  if (auto* const queue = queue_at(from.pid, address)) {
    ++(kind == line_kind::acquired ? queue->acquired : queue->released);
    queue->most_users = std::max(queue->most_users, users);
  }
  return kind;
}

line_kind runtime_log_parser::traced(const trace_line& from) {
  if (from.what == trace_line::is::nothing) return line_kind::unknown;
  if (from.what == trace_line::is::other) return line_kind::other_trace;
  auto task = std::find_if(out_.tasks.rbegin(), out_.tasks.rend(),
                           [&](const traced_task& each) { return each.pid == from.pid; });
  if (task == out_.tasks.rend()) {
    if (out_.tasks.size() >= most) {
      ++out_.left_out;
      return line_kind::driver_call;
    }
    constexpr std::size_t longest_name = 32;  // the kernel's have 15
    out_.tasks.push_back({from.pid, std::string{from.task.substr(0, longest_name)}, {}});
    task = out_.tasks.rbegin();
  }
  ++task->calls[from.function];
  return line_kind::driver_call;
}

hardware_queue* runtime_log_parser::known(pid_t pid, std::uint64_t address) noexcept {
  const auto found = by_address_.find({address, pid});
  if (found != by_address_.end()) return &out_.queues[found->second];
  return nullptr;
}

hardware_queue* runtime_log_parser::queue_at(pid_t pid, std::uint64_t address) {
  if (auto* const found = known(pid, address)) return found;
  if (out_.queues.size() >= most) {
    ++out_.left_out;
    return nullptr;
  }
  by_address_.emplace(of_process{address, pid}, out_.queues.size());
  auto& made = out_.queues.emplace_back();
  made.pid = pid;
  made.address = address;
  return &made;
}

}  // namespace sluice::cli
