# Debian packages of an installed tree: `cpack -G DEB` in the build folder, one package a component.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "HyperOffload developers <developers@hyperoffload.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL tools library development python)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)  # they are written out below, with versions
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/client)
set(ho_same "(= ${PROJECT_VERSION})")
set(ho_control ${CMAKE_CURRENT_LIST_DIR}/debian)

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME hyperoffload)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "Memory pool for training jobs: daemon and commands
 hyperoffloadd lends this node's memory and flash to jobs of a cluster, and hyperoffload plans
 what leaves device memory, and looks after the pool.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS
  "libhyperoffload0 ${ho_same}, systemd | systemd-standalone-sysusers")
set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA
  "${ho_control}/conffiles;${ho_control}/postinst;${ho_control}/prerm;${ho_control}/postrm")
set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libhyperoffload0)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "Client of a HyperOffload memory pool: library
 Replays a plan of transfers between device memory and the pool behind a job's compute.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
# CPack's own warns of the modules, which have no version.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/shlibs CONTENT "libhyperoffload 0 libhyperoffload0 (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${ho_control}/triggers;${CMAKE_BINARY_DIR}/shlibs")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libhyperoffload-dev)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Client of a HyperOffload memory pool: headers
 Headers for C and C++, and files for pkg-config and CMake.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libhyperoffload0 ${ho_same}")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-hyperoffload)
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "Trains PyTorch scripts within a device memory budget
 hyperoffload.fit runs an unmodified training loop with tensors that come and go by plan.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3, libhyperoffload0 (>= ${PROJECT_VERSION}), hyperoffload (>= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS python3-torch)  # most have their own

# Each package says whose it is and what is new in a folder of its own. Other trees have the license alone.
string(TIMESTAMP ho_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(${ho_control}/changelog.in ${CMAKE_BINARY_DIR}/changelog @ONLY)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(folder \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  install(CODE "if(CPACK_PACKAGE_NAME OR DEFINED ENV{DESTDIR})
      file(INSTALL ${ho_control}/copyright ${CMAKE_BINARY_DIR}/changelog DESTINATION \"${folder}\")
      execute_process(COMMAND gzip -n9f \"\$ENV{DESTDIR}${folder}/changelog\" COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT ${component})
endforeach()

include(CPack)

# The same for PyTorch in an environment of its own, in one file: `ninja wheel`.
add_custom_target(wheel COMMAND ${CMAKE_CURRENT_LIST_DIR}/wheel/make_wheel ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR}
  ${PROJECT_VERSION} ${CMAKE_BINARY_DIR} DEPENDS hyperoffload hyperoffload_cli USES_TERMINAL VERBATIM)
