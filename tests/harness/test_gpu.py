"""NVML is read by its interface: against a library made here, since no machine with a device runs these tests."""

import shutil
import subprocess

import pytest

from harness import gpu

LIBRARY = """
#include <string.h>
typedef void *device;
struct memory { unsigned long long total, free, used; };
struct rates { unsigned gpu, memory; };
struct process { unsigned pid; unsigned long long memory; unsigned instance, compute; };
static int places[2];
int nvmlInit_v2(void) { return STARTS; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) { *d = &places[i]; return i > 1; }
int nvmlDeviceGetName(device d, char *to, unsigned n) { strncpy(to, d == places ? "Tesla" : "Volta", n); return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned n) { strncpy(to, "550.1", n); return 0; }
int nvmlDeviceGetMemoryInfo(device d, struct memory *m) { m->total = 80ull << 30; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *v) { *v = 300500; return 0; }
int nvmlDeviceGetMaxClockInfo(device d, int type, unsigned *v) { *v = type == 0 ? 1980 : 1; return 0; }
int nvmlDeviceGetClockInfo(device d, int type, unsigned *v) { *v = type == 0 ? 1500 : 2600; return 0; }
int nvmlDeviceGetPowerUsage(device d, unsigned *v) { *v = 123400; return d != places; }
int nvmlDeviceGetTemperature(device d, int sensor, unsigned *v) { *v = sensor == 0 ? 61 : 1; return 0; }
int nvmlDeviceGetUtilizationRates(device d, struct rates *r) { r->gpu = 45; r->memory = 1; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, struct process *p)
{ if (*n < 2) return 7; *n = 2; p[0].pid = 10; p[1].pid = 20; return 0; }
"""


@pytest.fixture
def library(tmp_path):
    def build(starts):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("needs a C compiler")
        source, target = tmp_path / "nvml.c", tmp_path / f"nvml{starts}.so"
        source.write_text(LIBRARY)
        subprocess.run([compiler, "-shared", "-fPIC", f"-DSTARTS={starts}", "-o", target, source], check=True)
        return str(target)

    return build


def test_devices_are_described_and_read(library):
    devices = gpu.Gpus(library(0))
    assert len(devices) == 2
    first, second = devices.describe()
    assert first == {
        "name": "Tesla",
        "driver": "550.1",
        "memory_bytes": 80 << 30,
        "power_limit_watts": 300.5,
        "max_clock_mhz": 1980,
    }
    assert second["name"] == "Volta"
    now, other = devices.read({10})
    assert now == {
        "clock_mhz": 1500,
        "memory_clock_mhz": 2600,
        "power_watts": 123.4,
        "temperature_c": 61,
        "busy": 0.45,
        "foreign": [20],
    }
    assert other["power_watts"] is None


def test_without_a_driver_there_is_no_device(library):
    assert len(gpu.Gpus("libno-such-driver.so.1")) == 0
    assert gpu.Gpus("libno-such-driver.so.1").read(set()) == []
    assert len(gpu.Gpus(library(9))) == 0
