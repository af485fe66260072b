@echo off
rem Installs Finetune Studio for this user and puts a shortcut on the desktop; safe to run again.
setlocal
cd /d "%~dp0"

set "FOUND="
for %%V in (3.12 3.13 3.11 3.14) do if not defined FOUND call :try py -%%V
for %%N in (python python3) do if not defined FOUND call :try %%N
if not defined FOUND goto no_python

echo Using %FOUND%
%FOUND% launch.py install %*
if %errorlevel% neq 0 goto failed

rem pythonw has no console: a click into a console window would freeze the studio.
set "STUDIO_ROOT=%CD%"
set "SHORTCUT=$shell = New-Object -ComObject WScript.Shell;"
set "SHORTCUT=%SHORTCUT% $link = $shell.CreateShortcut([Environment]::GetFolderPath('Desktop') + '\Finetune Studio.lnk');"
set "SHORTCUT=%SHORTCUT% $link.TargetPath = $env:STUDIO_ROOT + '\.venv\Scripts\pythonw.exe';"
set "SHORTCUT=%SHORTCUT% $link.Arguments = [char]34 + $env:STUDIO_ROOT + '\launch.py' + [char]34;"
set "SHORTCUT=%SHORTCUT% $link.WorkingDirectory = $env:STUDIO_ROOT;"
set "SHORTCUT=%SHORTCUT% $link.Save()"
powershell -NoProfile -ExecutionPolicy Bypass -Command "%SHORTCUT%"
if %errorlevel% neq 0 goto no_shortcut
echo Finetune Studio is installed. Start it with the shortcut on the desktop.
exit /b 0

:no_shortcut
echo Finetune Studio is installed, but the shortcut could not be made. Start it with: %FOUND% launch.py
exit /b 0

:no_python
where python 2>nul | findstr /i WindowsApps >nul
if %errorlevel% equ 0 goto store_stub
echo No Python was found. Install Python 3.12 (64-bit) from python.org, then run this file again.
pause
exit /b 2

:store_stub
echo The "python" on this PC only opens the Microsoft Store. Install Python 3.12 (64-bit) from python.org instead.
pause
exit /b 2

:failed
echo The installation did not finish. The details are in .venv-install.log in this folder.
pause
exit /b 2

:try
rem A candidate counts only when it runs: the Store's placeholder and version managers' shims do not.
%* -c "import sys; sys.exit(sys.version_info < (3, 8))" >nul 2>nul
if %errorlevel% neq 0 exit /b 0
set "FOUND=%*"
exit /b 0
