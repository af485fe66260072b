@echo off
rem Installs Finetune Studio for this user and puts a shortcut on the desktop; safe to run again.
rem A double click shows the progress in a page of the browser, which then becomes the studio.
rem   /quiet   asks nothing, opens no page and waits for no key; any other word goes to "launch.py install".
rem Exit codes: 0 installed, 1 the installation failed, 2 this computer lacks something that it needs.
rem This file only finds a Python 3.8 or newer: launch.py judges it, looks for a better one and installs, and says
rem the rest in the person's language. Commands from the PATH run in a cmd of their own, for pyenv's python is a .bat, from
rem which no way leads back here; paths stay out of it and of "call", which would read their ^ and %% once more.
setlocal EnableExtensions DisableDelayedExpansion
rem Python's install manager would otherwise download a Python without asking.
set "PYTHON_MANAGER_AUTOMATIC_INSTALL=false"
set "QUIET="
set "PAGE= --page"
set "WORDS="
:words
if "%~1"=="" goto enter
if /i "%~1"=="/quiet" goto quiet
set "WORDS=%WORDS% %1"
shift /1
goto words
:quiet
set "QUIET=1"
set "PAGE="
shift /1
goto words

:enter
rem pushd gives a network folder a drive letter; cd cannot enter one.
pushd "%~dp0"
if %errorlevel% neq 0 goto no_folder
if not exist launch.py goto not_unpacked
set "OFFERED="

:find
set "FOUND="
set "FILE="
set "OLD="
cmd /d /c py -0 >nul 2>nul
if %errorlevel% equ 0 for %%V in (-3.12 -3.13 -3.11 -3.14 -3) do call :try py %%V
for %%N in (python python3) do call :try %%N
set "ROOT=%LOCALAPPDATA%"
for /d %%D in ("%ROOT%\Programs\Python\Python3*" "%ROOT%\Python\pythoncore-3*" "%ProgramFiles%\Python3*") do (
  set "NEXT=%%D\python.exe"
  call :try_file
)
if defined FILE goto install_by_file
if defined FOUND goto install_by_name
if defined OLD goto too_old
set "HERE="
for %%P in (python.exe python.bat python.cmd) do if not defined HERE set "HERE=%%~$PATH:P"
if not defined HERE goto no_python
if not "%HERE:WindowsApps=%"=="%HERE%" goto store_stub
goto broken_python

:install_by_name
cmd /d /c %FOUND% launch.py install --shortcut%PAGE%%WORDS%
set "CODE=%errorlevel%"
goto judge
:install_by_file
"%FILE%" launch.py install --shortcut%PAGE%%WORDS%
set "CODE=%errorlevel%"
:judge
if "%CODE%"=="0" goto stop
if "%CODE%"=="1" goto stop
if "%CODE%"=="2" goto stop
echo The installation broke off: Python ended with code %CODE%. The details are in .venv-install.log in this folder.
echo Running this file again goes on from there.
set "CODE=1"
goto stop

:no_python
echo No Python was found. Install Python 3.12 (64-bit) from python.org, then run this file again.
goto offer
:store_stub
echo The "python" on this PC only opens the Microsoft Store. Install Python 3.12 (64-bit) from python.org instead.
goto offer
:broken_python
echo The "python" on this PC does not start. Install Python 3.12 (64-bit) from python.org, then run this file again.
goto offer
:too_old
echo The Python on this PC is too old: the studio needs 3.11 to 3.14. Install Python 3.12 (64-bit) from python.org.
goto offer

:offer
set "CODE=2"
if defined OFFERED goto stop
if defined QUIET goto stop
set "HERE="
for %%P in (winget.exe winget.bat winget.cmd) do if not defined HERE set "HERE=%%~$PATH:P"
if not defined HERE goto stop
set "OFFERED=1"
set "ANSWER="
set /p "ANSWER=Install Python 3.12 for you now, with winget from Microsoft? [y/N] "
if not defined ANSWER goto stop
set "ANSWER=%ANSWER:"=%"
if /i not "%ANSWER%"=="y" goto stop
cmd /d /c winget install --exact --id Python.Python.3.12 --source winget --scope user
if %errorlevel% neq 0 echo winget could not install Python.
goto find

:no_folder
echo This file's folder cannot be opened. Copy it to a folder of this PC, for example C:\FinetuneStudio.
set "CODE=2"
goto wait
:not_unpacked
echo launch.py is not beside this file. Unpack the whole archive first, then run install_windows.bat in its folder.
set "CODE=2"

:stop
popd
:wait
if not defined QUIET pause
exit /b %CODE%

:try
rem A candidate counts only when it runs: the Store's placeholder and version managers' shims do not.
if defined FOUND exit /b 0
cmd /d /c %* -c "import sys; sys.exit(7 if sys.version_info < (3, 8) else 0)" >nul 2>nul
set "CODE=%errorlevel%"
if "%CODE%"=="7" set "OLD=1"
if not "%CODE%"=="0" exit /b 0
set "FOUND=%*"
exit /b 0

:try_file
if defined FOUND exit /b 0
if defined FILE exit /b 0
if not exist "%NEXT%" exit /b 0
"%NEXT%" -c "import sys; sys.exit(7 if sys.version_info < (3, 8) else 0)" >nul 2>nul
set "CODE=%errorlevel%"
if "%CODE%"=="7" set "OLD=1"
if not "%CODE%"=="0" exit /b 0
set "FILE=%NEXT%"
exit /b 0
