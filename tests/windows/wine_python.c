/* Starts python312.dll in Wine 8, where CPython cannot begin with files or NUL as its standard streams: they become
   pipes, which a thread each empties into the file. With PROCESS_PRNG: the one function that Rust's wheels want of a
   bcryptprimitives.dll. Compiled by triton-windows' own TinyCC; see wine_python.sh. */
#include <windows.h>

#ifdef PROCESS_PRNG

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *data, size_t count) {
    HMODULE library = LoadLibraryW(L"advapi32.dll");
    BOOLEAN(__stdcall *fill)(void *, unsigned long) = (void *)GetProcAddress(library, "SystemFunction036");
    return fill(data, (unsigned long)count);
}

#else

#include <shellapi.h>
#include <stdint.h>
#include <stdio.h>

static HANDLE ends[2][2]; /* of stdout and stderr: the pipe's end to read, and where its bytes go */

static DWORD WINAPI copy(void *pair) {
    HANDLE *from = pair;
    char block[4096];
    DWORD got, put;
    while (ReadFile(from[0], block, sizeof block, &got, NULL) && got) WriteFile(from[1], block, got, &put, NULL);
    return 0;
}

/* Puts `handle` at `number` of the C runtime that Python uses, which has looked at the streams already. */
static void give(int number, HANDLE handle) {
    HMODULE runtime = LoadLibraryW(L"ucrtbase.dll");
    int (*open)(intptr_t, int) = (void *)GetProcAddress(runtime, "_open_osfhandle");
    int (*dup2)(int, int) = (void *)GetProcAddress(runtime, "_dup2");
    int (*close)(int) = (void *)GetProcAddress(runtime, "_close");
    HANDLE self = GetCurrentProcess(), own;
    DuplicateHandle(self, handle, self, &own, 0, TRUE, DUPLICATE_SAME_ACCESS);
    int opened = open((intptr_t)own, 0);
    dup2(opened, number);
    if (opened != number) close(opened);
}

static void take_back(int number) {
    int (*close)(int) = (void *)GetProcAddress(LoadLibraryW(L"ucrtbase.dll"), "_close");
    close(number);
}

int main(void) {
    SECURITY_ATTRIBUTES inherit = {sizeof inherit, NULL, TRUE};
    HANDLE self = GetCurrentProcess(), in = GetStdHandle(STD_INPUT_HANDLE), reader, writer, writers[2], threads[2];
    int numbers[2], copies = 0, count;
    if (in && GetFileType(in) != FILE_TYPE_PIPE && CreatePipe(&reader, &writer, &inherit, 0)) {
        CloseHandle(writer); /* nothing to read */
        SetStdHandle(STD_INPUT_HANDLE, reader);
        give(0, reader);
    }
    for (int number = 1; number <= 2; number++) {
        DWORD which = number == 1 ? STD_OUTPUT_HANDLE : STD_ERROR_HANDLE;
        HANDLE out = GetStdHandle(which);
        if (!out || out == INVALID_HANDLE_VALUE || GetFileType(out) == FILE_TYPE_PIPE) continue;
        if (!CreatePipe(&reader, &writer, &inherit, 0)) continue;
        SetHandleInformation(reader, HANDLE_FLAG_INHERIT, 0);
        DuplicateHandle(self, out, self, &out, 0, FALSE, DUPLICATE_SAME_ACCESS); /* give() closes the first one */
        SetStdHandle(which, writer);
        give(number, writer);
        ends[copies][0] = reader;
        ends[copies][1] = out;
        writers[copies] = writer;
        numbers[copies] = number;
        threads[copies] = CreateThread(NULL, 0, copy, ends[copies], 0, NULL);
        copies++;
    }
    wchar_t **words = CommandLineToArgvW(GetCommandLineW(), &count);
    HMODULE library = LoadLibraryW(L"python312.dll");
    if (!library) {
        fprintf(stderr, "python312.dll: error %lu\n", GetLastError());
        return 99;
    }
    int (*run)(int, wchar_t **) = (void *)GetProcAddress(library, "Py_Main");
    int code = run(count, words);
    for (int index = 0; index < copies; index++) {
        CloseHandle(writers[index]);
        take_back(numbers[index]);
    }
    if (copies) WaitForMultipleObjects(copies, threads, TRUE, 2000);
    return code;
}

#endif
