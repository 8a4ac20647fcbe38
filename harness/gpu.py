"""NVIDIA devices through NVML: what they are, and their clock, power and users around a unit.

Only where the driver's library is installed; everything else finds no device. Written against the NVML API reference
and run against a library made for the tests only: no machine with a device has seen it yet.
"""

import ctypes

_GRAPHICS, _MEMORY = 0, 2
_NAME = 96
_MOST_PROCESSES = 128


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Gpus:
    """The machine's devices; none without the driver's library, or where it does not start."""

    def __init__(self, library: str = "libnvidia-ml.so.1"):
        self._devices: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError:
            return
        if self._nvml.nvmlInit_v2() != 0:
            return
        for index in range(self._number("nvmlDeviceGetCount_v2") or 0):
            device = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0:
                self._devices.append(device)

    def __len__(self) -> int:
        return len(self._devices)

    def describe(self) -> list[dict]:
        """What the devices are: name, memory_bytes, driver, power_limit_watts, max_clock_mhz; for the record."""
        return [
            {
                "name": self._text("nvmlDeviceGetName", device),
                "driver": self._text("nvmlSystemGetDriverVersion"),
                "memory_bytes": self._memory(device),
                "power_limit_watts": _thousandth(self._number("nvmlDeviceGetEnforcedPowerLimit", device)),
                "max_clock_mhz": self._number("nvmlDeviceGetMaxClockInfo", device, ctypes.c_int(_GRAPHICS)),
            }
            for device in self._devices
        ]

    def read(self, own: set[int]) -> list[dict]:
        """The devices now: clock_mhz, memory_clock_mhz, power_watts, temperature_c, busy, foreign (pids not own).

        busy is the share of the driver's last sample period, up to a second, in which some kernel ran.
        """
        return [
            {
                "clock_mhz": self._number("nvmlDeviceGetClockInfo", device, ctypes.c_int(_GRAPHICS)),
                "memory_clock_mhz": self._number("nvmlDeviceGetClockInfo", device, ctypes.c_int(_MEMORY)),
                "power_watts": _thousandth(self._number("nvmlDeviceGetPowerUsage", device)),
                "temperature_c": self._number("nvmlDeviceGetTemperature", device, ctypes.c_int(0)),
                "busy": self._busy(device),
                "foreign": sorted(self._users(device) - own),
            }
            for device in self._devices
        ]

    def _number(self, name: str, *arguments) -> int | None:
        value = ctypes.c_uint()
        return value.value if getattr(self._nvml, name)(*arguments, ctypes.byref(value)) == 0 else None

    def _text(self, name: str, *arguments) -> str | None:
        text = ctypes.create_string_buffer(_NAME)
        failed = getattr(self._nvml, name)(*arguments, text, ctypes.c_uint(_NAME))
        return None if failed else text.value.decode("utf-8", "replace")

    def _memory(self, device) -> int | None:
        memory = _Memory()
        return memory.total if self._nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0 else None

    def _busy(self, device) -> float | None:
        rates = _Utilisation()
        failed = self._nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates))
        return None if failed else rates.gpu / 100

    def _users(self, device) -> set[int]:
        count, users = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        failed = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), users)
        return set() if failed else {users[index].pid for index in range(count.value)}


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
