// Nothing but the precompiled header: see CMakeLists.txt.
