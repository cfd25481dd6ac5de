#pragma once
/// \file
/// The resource manager's private state, shared by the rm_*.cpp files. Everything on the engine's
/// thread.

#include "control_text.hpp"
#include "cost_draw.hpp"
#include "gpu_model.hpp"
#include "os.hpp"
#include "profile.hpp"
#include "rm_driver.hpp"
#include "task.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/nvidia/uapi.hpp"
#include "sluice/sim/nvidia_abi.hpp"

namespace sluice::sim {

namespace rm = sluice::nvidia::uapi;

/// A process that calls, by its memory. Forgotten once it is gone or has exec'd.
struct rm_caller {
  pid_t pid = 0;
  std::unique_ptr<address_space> memory;  ///< Null: gone.
};

/// What the statistics say of one process that had clients.
struct rm_process {
  pid_t pid = 0;
  std::uint32_t clients = 0;        ///< Alive.
  account past{};                   ///< Of channel groups that are gone.
  std::uint64_t channel_holds = 0;  ///< Channels that were taken off the GPU.
  duration longest_hold{};          ///< Of one channel without a break; what goes on is not in it.
  std::uint64_t broken_channels = 0;  ///< Whose page could not be written.
};

struct rm_channel;

/// One GPU and what lies below it.
struct rm_gpu {
  rm_gpu(engine& events, const gpu_profile& about, gpu_model::started on_start,
         gpu_model::completed on_complete)
      : shape{about},
        lock{events},
        model{events, about, std::move(on_start), std::move(on_complete)} {}
  const gpu_profile shape;
  async_mutex lock;  ///< Serialises the controls for this GPU.
  gpu_model model;
  std::map<model_queue, std::shared_ptr<rm_channel>> queues;  ///< Channels that had kernels.
  std::uint32_t channels = 0;
  std::uint64_t memory_used = 0;  ///< Bytes.
  cost_draw suspends{};
  cost_draw resumes{};
};

/// A channel group (TSG): what gets time slices.
struct rm_group {
  rm_gpu* gpu = nullptr;
  model_process model{};
  std::uint32_t compute_objects = 0;         ///< In its channels.
  std::optional<std::uint64_t> timeslice{};  ///< Microseconds, once it was set.
};

struct rm_channel {
  explicit rm_channel(engine& events) : changed{events} {}
  std::shared_ptr<rm_group> group;
  std::shared_ptr<rm_process> owner;
  bool freed = false;
  bool computes = false;
  std::uint32_t disables = 0;  ///< More than 0: off the GPU.
  time_point off_since{};
  model_queue queue = model_queue::none;  ///< From its first kernel on.

  std::shared_ptr<rm_caller> bound;  ///< Process whose memory has the page. Null: none.
  std::uint64_t page = 0;
  std::uint32_t records = 0;
  bool page_gone = false;  ///< It could not be written: nothing more is.
  nvidia_abi::channel_words words{};
  std::uint64_t before = 0;             ///< Kernels of earlier pages, which the words count.
  std::chrono::nanoseconds began_at{};  ///< The last one; CLOCK_REALTIME.
  std::uint64_t submitted = 0;
  std::uint64_t started = 0;
  std::uint64_t completed = 0;
  std::uint64_t written = 0;  ///< Of `completed`, what its page says.
  struct ended {
    time_point start{}, end{};
  };
  std::vector<ended> news;  ///< From kernel `written` on.
  bool dirty = false;
  wait_queue changed;  ///< `written` went up, or it was freed.
};

struct rm_object {
  std::uint32_t cls = 0;
  rm::NvHandle parent = 0;
  std::vector<rm::NvHandle> children{};  ///< In order of creation.
  rm_gpu* gpu = nullptr;                 ///< Null: the client.
  std::shared_ptr<rm_group> group{};
  std::shared_ptr<rm_channel> channel{};  ///< It, or the one that the object belongs to.
  std::uint64_t memory = 0;               ///< Bytes.
};

struct rm_client {
  rm::NvHandle handle = 0;
  file_id file = 0;
  std::shared_ptr<rm_process> owner;
  std::map<rm::NvHandle, rm_object> objects{};  ///< Its root among them.
  std::uint32_t last_generated = 0;
  rm_object* find(rm::NvHandle object);
};

/// One ioctl. Owners: its coroutine, and the table that interrupt() looks into.
struct rm_call {
  request_id id = 0;
  pid_t tid = 0;
  file_id file = 0;
  std::shared_ptr<rm_caller> caller;
  std::vector<std::byte> data;
  int result = 0;  ///< Of the ioctl itself.
  interruption signal;
  ioctl_done done;
};

/// What happens to calls that match, instead of or beside what they do.
struct rm_fault {
  std::uint32_t number = 0;
  std::optional<bool> disables{};  ///< Of FIFO_DISABLE_CHANNELS: which of its two directions.
  pid_t caller = 0;                ///< Whose calls; 0: everybody's.
  std::uint32_t times = 1;
  duration delay{};                       ///< They begin so much later.
  bool hangs = false;                     ///< They begin when the faults are forgotten.
  std::optional<std::uint32_t> status{};  ///< Answered instead of performing the call.
};

class rm_driver::impl {
 public:
  using call_ptr = std::shared_ptr<rm_call>;
  using status = std::uint32_t;

  impl(rm_driver& outer, engine& events, os& system, const profile& node);
  ~impl();

  // rm_driver.cpp: files, callers, dispatch
  int open(pid_t tid, std::uint32_t node, file_id& out);
  void release(file_id file);
  request_id ioctl(pid_t tid, file_id file, std::uint32_t command, std::span<const std::byte> in,
                   ioctl_done done);
  void interrupt(request_id request);
  void reap();

  int control(std::string_view line, std::string& problem);  // rm_faults.cpp
  std::string stats_json() const;                            // rm_stats.cpp

 private:
  std::shared_ptr<rm_caller> caller_of(pid_t tid);
  void forget(const std::shared_ptr<rm_caller>& caller);
  /// By its handle, if it was made through that file.
  rm_client* find(rm::NvHandle client, file_id file);
  task<void> serve(call_ptr c, std::uint32_t number);
  template <class Args>
  task<void> with(call_ptr c, task<status> (impl::*handler)(call_ptr, Args&));

  // --- Objects (rm_objects.cpp) ---
  task<status> alloc(call_ptr c, rm::NVOS21_PARAMETERS& args);
  task<status> free(call_ptr c, rm::NVOS00_PARAMETERS& args);
  status make_client(const rm_call& c, rm::NVOS21_PARAMETERS& args);
  status fill(const rm_call& c, const rm::NVOS21_PARAMETERS& args, rm_client& client,
              const rm_object& parent, rm_object& made);
  void free_object(rm_client& client, rm::NvHandle object);
  void free_client(rm::NvHandle client);

  // --- Controls (rm_control.cpp) ---
  task<status> control_object(call_ptr c, rm::NVOS54_PARAMETERS& args);
  task<status> perform(call_ptr c, rm::NVOS54_PARAMETERS& args, std::vector<std::byte>& parameters);
  task<status> disable_channels(rm_gpu& gpu, rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params);
  status handle_info(rm_client& client, rm::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS& params);
  status child_handle(rm_client& client,
                      rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS& params);
  /// Adds a disable to the channel, or takes one from it if it has any.
  void change_disables(rm_channel& channel, bool disable);
  void hold_ended(const rm_channel& channel) const;
  std::uint64_t timeslice_of(const rm_group& group) const;

  // --- Kernels (rm_work.cpp) ---
  task<status> bind_channel(call_ptr c, nvidia_abi::bind_args& args);
  task<status> submit(call_ptr c, nvidia_abi::submit_args& args);
  task<status> wait(call_ptr c, nvidia_abi::wait_args& args);
  task<status> gpu_info(call_ptr c, nvidia_abi::gpu_info_args& args);
  /// \return NV_OK, or why there is no such channel.
  status channel_of(const rm_call& c, rm::NvHandle client, rm::NvHandle channel,
                    std::shared_ptr<rm_channel>& out);
  void note(const std::shared_ptr<rm_channel>& channel);
  void flush();
  static void write_page(rm_channel& channel);

  // --- Faults (rm_faults.cpp) ---
  /// \param parameters of a control. \return the status to answer with, if the call meets a fault
  ///        that says one, after what the fault wants to wait for.
  task<std::optional<status>> meet_fault(call_ptr c, std::uint32_t number,
                                         const std::vector<std::byte>* parameters);

  rm_driver& outer_;
  engine& engine_;
  os& os_;
  const profile profile_;
  std::vector<std::unique_ptr<rm_gpu>> gpus_;
  std::map<file_id, std::uint32_t> files_;  // The node of each.
  file_id last_file_ = 0;
  std::map<pid_t, std::shared_ptr<rm_caller>> callers_;
  std::map<rm::NvHandle, rm_client> clients_;
  std::uint32_t last_client_ = 0;
  std::uint64_t last_group_ = 0;
  std::map<pid_t, std::shared_ptr<rm_process>> processes_;  // With clients.
  std::deque<std::shared_ptr<rm_process>> exited_;          // The youngest only.
  std::map<std::uint32_t, std::uint64_t> calls_made_;       // By escape or control.

  std::vector<rm_fault> faults_;
  std::uint64_t fault_generation_ = 0;
  wait_queue faults_forgotten_;

  std::map<request_id, call_ptr> calls_;
  request_id last_call_ = 0;
  std::vector<std::shared_ptr<rm_channel>> dirty_;

  // The last members: frames go first, then what actions planned with the engine must not outlive.
  std::shared_ptr<impl*> alive_ = std::make_shared<impl*>(this);
  task_scope scope_;
};

/// The calls that faults and statistics name.
inline constexpr std::array rm_calls{
    named_number{"ALLOC", rm::NV_ESC_RM_ALLOC},
    named_number{"FREE", rm::NV_ESC_RM_FREE},
    named_number{"CLIENT_GET_HANDLE_INFO", rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO},
    named_number{"CLIENT_GET_CHILD_HANDLE", rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE},
    named_number{"GPU_GET_ID", rm::NV2080_CTRL_CMD_GPU_GET_ID},
    named_number{"FIFO_DISABLE_CHANNELS", rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS},
    named_number{"SET_TIMESLICE", rm::NVA06C_CTRL_CMD_SET_TIMESLICE},
    named_number{"GET_TIMESLICE", rm::NVA06C_CTRL_CMD_GET_TIMESLICE},
};

/// nvstatuscodes.h, beside what uapi.hpp has.
inline constexpr std::uint32_t NV_ERR_INVALID_ADDRESS = 0x1E;

}  // namespace sluice::sim
