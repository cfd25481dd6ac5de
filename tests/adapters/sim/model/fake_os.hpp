#pragma once
/// \file
/// A machine that exists in a test's memory only: processes with threads, tracers, descriptors and
/// page tables, for the simulated driver.

#include "os.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sluice::sim::test {

/// One mm. Memory exists page by page, where map() put it.
class fake_memory {
 public:
  static constexpr std::uint64_t page = 4096;
  bool alive = true;
  std::uint64_t reads = 0;                  ///< Copies made by the driver.
  std::uint64_t word_batches = 0;           ///< Calls of write_words.
  std::vector<address_space::patch> words;  ///< Every word stored, in order.

  void map(std::uint64_t address, std::uint64_t size) {
    for (auto at = address / page; at <= (address + size - 1) / page; ++at) pages_[at];
  }
  void unmap(std::uint64_t address, std::uint64_t size) {
    for (auto at = address / page; at <= (address + size - 1) / page; ++at) pages_.erase(at);
  }
  bool copy(std::uint64_t address, std::span<std::byte> into, std::span<const std::byte> from) {
    const auto size = into.empty() ? from.size() : into.size();
    for (auto at = address / page; at <= (address + size - 1) / page; ++at) {
      if (!pages_.contains(at)) return false;
    }
    for (std::size_t done = 0; done < size;) {
      const auto offset = (address + done) % page;
      const auto part = std::min<std::size_t>(size - done, page - offset);
      auto* bytes = pages_.at((address + done) / page).data() + offset;
      if (into.empty())
        std::copy_n(from.data() + done, part, bytes);
      else
        std::copy_n(bytes, part, into.data() + done);
      done += part;
    }
    return true;
  }
  template <class T>
  T get(std::uint64_t address) {
    T value{};
    if (!copy(address, std::as_writable_bytes(std::span{&value, 1}), {})) std::abort();
    return value;
  }
  template <class T>
  void put(std::uint64_t address, const T& value) {
    if (!copy(address, {}, std::as_bytes(std::span{&value, 1}))) std::abort();
  }

 private:
  std::map<std::uint64_t, std::array<std::byte, page>> pages_;
};

class fake_address_space final : public address_space {
 public:
  fake_address_space(pid_t pid, std::shared_ptr<fake_memory> memory)
      : pid_{pid}, memory_{std::move(memory)} {}
  pid_t pid() const noexcept override { return pid_; }
  bool alive() const noexcept override { return memory_->alive; }
  result<void> read(std::uint64_t address, std::span<std::byte> into) override {
    ++memory_->reads;
    if (into.empty()) return {};
    return answer(memory_->alive && memory_->copy(address, into, {}));
  }
  result<void> write(std::uint64_t address, std::span<const std::byte> from) override {
    if (from.empty()) return {};
    return answer(memory_->alive && memory_->copy(address, {}, from));
  }
  result<void> write_words(std::span<const patch> patches) override {
    if (!patches.empty()) ++memory_->word_batches;
    for (const auto& each : patches) {
      if (!write(each.address, std::as_bytes(std::span{&each.value, 1}))) return answer(false);
      memory_->words.push_back(each);
    }
    return {};
  }
  const fake_memory* identity() const noexcept { return memory_.get(); }

 private:
  result<void> answer(bool good) const {
    if (good) return {};
    return error_code{memory_->alive ? EFAULT : ESRCH, boost::system::system_category()};
  }
  pid_t pid_;
  std::shared_ptr<fake_memory> memory_;
};

class fake_os final : public os {
 public:
  /// What a descriptor refers to; shared by all its duplicates.
  struct open_file {
    std::string bytes;  ///< Written by the driver.
    std::function<void()> rung;
    bool render_node = false;
    std::uint64_t handed = 0;  ///< The number of a file that was handed over.
  };

  fake_memory& start(pid_t pid) {
    auto& process = processes_[pid];
    process.memory = std::make_shared<fake_memory>();
    process.threads = {pid};
    return *process.memory;
  }
  void add_thread(pid_t pid, pid_t tid) { processes_.at(pid).threads.insert(tid); }
  void trace(pid_t pid, pid_t tracer) { processes_.at(pid).tracer = tracer; }
  /// The old memory is released, and a new program runs in a new one.
  fake_memory& exec(pid_t pid) {
    auto& process = processes_.at(pid);
    process.memory->alive = false;
    process.memory = std::make_shared<fake_memory>();
    return *process.memory;
  }
  void exit(pid_t pid) {
    processes_.at(pid).memory->alive = false;
    processes_.erase(pid);
  }
  /// The main thread ends before the others: a zombie without memory, in a process that lives on.
  void end_thread(pid_t tid) { ended_.insert(tid); }
  /// Exited but not reaped: the pid exists, its memory does not.
  void become_zombie(pid_t pid) {
    auto& process = processes_.at(pid);
    process.memory->alive = false;
    process.memory = nullptr;
  }
  /// Expires when the process is gone and the driver has let go of it.
  std::weak_ptr<fake_memory> observe(pid_t pid) { return processes_.at(pid).memory; }
  fake_memory& memory(pid_t pid) { return *processes_.at(pid).memory; }
  std::shared_ptr<open_file> open_file_of(pid_t pid, int fd) {
    auto& slot = processes_.at(pid).descriptors[fd];
    if (!slot) slot = std::make_shared<open_file>();
    return slot;
  }
  void share_file(pid_t pid, int fd, std::shared_ptr<open_file> file) {
    processes_.at(pid).descriptors[fd] = std::move(file);
  }
  /// Duplicates that the driver holds: of render nodes, and of all other files.
  std::size_t render_nodes_taken() const {
    return static_cast<std::size_t>(std::count_if(
        ours_.begin(), ours_.end(), [](const auto& each) { return each.second->render_node; }));
  }
  std::size_t taken() const { return ours_.size() - render_nodes_taken(); }

  pid_t leader_of(pid_t tid) override {
    for (const auto& [pid, process] : processes_) {
      if (process.threads.contains(tid)) return pid;
    }
    return 0;
  }
  bool has_memory(pid_t tid) override {
    const auto it = processes_.find(leader_of(tid));
    return it != processes_.end() && it->second.memory && !ended_.contains(tid);
  }
  pid_t tracer_of(pid_t pid) override {
    const auto it = processes_.find(pid);
    return it == processes_.end() ? 0 : it->second.tracer;
  }
  /// What threads may, and who may attach to whom; by default nothing and nobody.
  std::set<std::pair<pid_t, int>> capabilities;
  std::set<std::pair<pid_t, pid_t>> may_trace;
  bool has_capability(pid_t tid, int capability) override {
    return capabilities.contains({tid, capability});
  }
  bool may_attach(pid_t tid, pid_t pid) override { return may_trace.contains({tid, pid}); }
  result<std::unique_ptr<address_space>> open_address_space(pid_t pid) override {
    const auto it = processes_.find(pid);
    if (it == processes_.end() || !has_memory(pid)) {
      return error_code{ESRCH, boost::system::system_category()};
    }
    return std::unique_ptr<address_space>{
        std::make_unique<fake_address_space>(pid, it->second.memory)};
  }
  bool same_address_space(pid_t pid, const address_space& space) override {
    const auto it = processes_.find(pid);
    return it != processes_.end() && it->second.memory &&
           it->second.memory.get() == dynamic_cast<const fake_address_space&>(space).identity();
  }
  std::vector<pid_t> killed;
  void kill_process(pid_t pid) override { killed.push_back(pid); }
  result<int> take_fd(pid_t tid, int fd) override {
    const auto process = processes_.find(leader_of(tid));
    if (process == processes_.end()) return error_code{ESRCH, boost::system::system_category()};
    const auto it = process->second.descriptors.find(fd);
    if (it == process->second.descriptors.end()) {
      return error_code{EBADF, boost::system::system_category()};
    }
    ours_.emplace(++last_fd_, it->second);
    return last_fd_;
  }
  void close_fd(int fd) override {
    if (ours_.erase(fd) == 0) std::abort();
  }
  bool same_file(int one, int other) override { return ours_.at(one) == ours_.at(other); }
  bool is_render_node(int fd) override { return ours_.at(fd)->render_node; }
  void write_byte(int fd, char byte) override { ours_.at(fd)->bytes += byte; }
  void watch_doorbell(int fd, std::function<void()> rung) override {
    ours_.at(fd)->rung = std::move(rung);
  }
  void unwatch_doorbell(int fd) override { ours_.at(fd)->rung = nullptr; }
  std::string name_of(pid_t tid) override {
    const auto leader = leader_of(tid);
    return leader == 0 ? "" : "task" + std::to_string(leader);
  }
  void hand_over_file(pid_t tid, std::uint64_t file, file_place where,
                      file_handover told) override {
    handovers.push_back({tid, file, where, std::move(told)});
    if (handover_error) handovers.back().told.ready(*handover_error);
  }
  result<std::uint64_t> handed_file(pid_t tid, int fd) override {
    const auto taken = take_fd(tid, fd);
    if (!taken) return taken.error();
    const auto number = ours_.at(*taken)->handed;
    close_fd(*taken);
    if (number == 0) return error_code{EINVAL, boost::system::system_category()};
    return number;
  }

  struct handover {
    pid_t tid;
    std::uint64_t file;
    file_place where;
    file_handover told;
  };
  std::vector<handover> handovers;       ///< Every one ever asked for.
  std::optional<int> handover_error{0};  ///< What is said at once; nothing: the test says it.

 private:
  struct simulated_process {
    std::shared_ptr<fake_memory> memory;
    std::set<pid_t> threads;
    pid_t tracer = 0;
    std::map<int, std::shared_ptr<open_file>> descriptors;
  };
  std::map<pid_t, simulated_process> processes_;
  std::set<pid_t> ended_;
  std::map<int, std::shared_ptr<open_file>> ours_;
  int last_fd_ = 1000;
};

}  // namespace sluice::sim::test
