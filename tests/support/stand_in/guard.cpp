// What torch's C++ side must know of a device that is only pretended: who it is, how many there are, and streams that
// are always done. Autograd's engine then runs a backward of "cuda" tensors in a thread of that device.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr DeviceIndex most = 8; // the engine counts devices once, before the first backward of the process
std::atomic<int> present{0};    // how many there are at this moment
thread_local DeviceIndex selected = 0;

Device concrete(Device device) {
  return device.has_index() ? device : Device(DeviceType::CUDA, selected);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  DeviceIndex deviceCount() const noexcept override { return most; }
  Device getDevice() const override { return Device(DeviceType::CUDA, selected); }
  void setDevice(Device device) const override { selected = concrete(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override { selected = concrete(device).index(); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Stream getStream(Device device) const noexcept override { return Stream(Stream::DEFAULT, concrete(device)); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const noexcept override { return getStream(stream.device()); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return present; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(present.load()); }
  DeviceIndex getCurrentDevice() const override { return selected; }
  bool isPinnedPtr(const void*) const override { return false; }
  void deviceSynchronize(DeviceIndex) const override {}
};

} // namespace

extern "C" {

void rk_register() { c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(new Guard()); }

// A build of torch for CUDA asks an object of its own, which would ask the driver. That object has no data: while
// devices are present its table of functions is ours.
void rk_present(int count) {
  static Hooks ours;
  static void* theirs = nullptr;
  void** asked = reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks()));
  if (!theirs) theirs = *asked;
  *asked = count ? *reinterpret_cast<void**>(&ours) : theirs;
  present = count;
}

int rk_selected() { return selected; }
void rk_select(int index) { selected = static_cast<DeviceIndex>(index); }
}
